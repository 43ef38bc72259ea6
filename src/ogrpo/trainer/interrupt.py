"""Ctrl-C and SIGTERM end a run between two steps, so that what it leaves can be resumed."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signal(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turns the first SIGINT or SIGTERM into a request; a second one interrupts at once."""
    request = StopRequest()

    def handle(number: int, _frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)
        notify(request.signal.name)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
