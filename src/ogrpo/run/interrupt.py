"""Ctrl-C, SIGTERM and SIGHUP end a run between two steps, so that what it leaves can be resumed."""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP is what a process gets whose terminal went away: a closed window, a lost SSH session."""


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signal(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turns the first of these signals into a request; a second one interrupts at once.

    A signal that is ignored stays so: `nohup` asks for that.
    """
    request = StopRequest()

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            write_nowhere_if_unread()
        if request:
            raise KeyboardInterrupt(f"{signal.Signals(number).name}: interrupted at once")
        request.signal = signal.Signals(number)
        notify(request.signal.name)

    heeded = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_nowhere_if_unread() -> None:
    """Leads output and errors to nowhere where nobody reads them any more.

    Every line that is written to a terminal that went away, or to a pipe without a reader, is an
    error, which would end the run before its state is saved.
    """
    for output in (1, 2):
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(output, select.POLLOUT)
            if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
