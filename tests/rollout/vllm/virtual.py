"""An event loop whose clock jumps: what waits for seconds is done in none."""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, it moves the clock there."""

    clock = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "everybody waits, and no timer is left"
        self.clock += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds; it must do nothing that takes real ones."""

    def __init__(self):
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.clock
