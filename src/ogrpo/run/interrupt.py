"""Ctrl-C, SIGTERM and SIGHUP end a run so that what it leaves can be resumed."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ogrpo.system.terminal import RunNote

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP is what a process gets whose terminal went away: a closed window, a lost SSH session."""


class StopRequest:
    """Request to stop after the step that is under way; its signal is None before there is one."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None


@contextmanager
def handling(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Has each of these signals call `handle` within the block.

    A signal that is ignored stays so: `nohup` asks for that.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            write_nowhere_if_unread()
        handle(signal.Signals(number))

    main = threading.current_thread() is threading.main_thread()  # another may not handle signals
    heeded = [n for n in STOPPING if main and signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def interrupt(number: signal.Signals) -> None:
    """Raises KeyboardInterrupt, as Ctrl-C does, with the signal's name."""
    raise KeyboardInterrupt(f"{number.name}: interrupted at once")


@contextmanager
def stop_on_signal(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turns the first of these signals into a request; a second one interrupts at once.

    A hangup after a hangup adds nothing: the kernel and the shell each send one.
    """
    request = StopRequest()

    def handle(number: signal.Signals) -> None:
        if number == request.signal == signal.SIGHUP:
            return
        if request.signal is not None:
            interrupt(number)
        request.signal = number
        notify(number.name)

    with handling(handle):
        yield request


@contextmanager
def noting(text: str, kind: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Notes beside an error of this kind within the block what is safe, and the way on."""
    try:
        yield
    except kind as error:
        error.add_note(RunNote(text))
        raise


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
