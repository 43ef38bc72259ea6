"""`ogrpo train` in a fork of this process, which notes what it writes and may kill itself there.

A fork has everything imported, so that thirty runs with their resumptions take minutes. Nothing in
it is replaced: an audit hook sees each file that Python opens for writing, makes, renames or
deletes in the run's folder, and SIGKILL in the hook comes before it. What C++ writes (the arrays of
a checkpoint) has no such events; moments by the clock and delays after an event fall there too.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ogrpo.cli import main

CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink"})
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class AtWrite:
    """SIGKILL at the `number`-th change of a file, or `delay` seconds after it."""

    number: int
    delay: float


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Has the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def start(
    options: Sequence[str], log: Path, changes: Path, *, kill: AtWrite | None, **environment: str
) -> int:
    """Forks a trainer with these options; returns its process id, which is its group's too.

    Args:
      options: of `ogrpo train`; the run's folder among them, by its absolute path.
      log: where what it says goes.
      changes: where it notes each change of a file, a line each.
      kill: where it kills itself.
      environment: what differs from this process's.
    """
    if not (pid := os.fork()):
        _become(options, log, changes, kill, environment)
    return pid


def _become(
    options: Sequence[str],
    log: Path,
    changes: Path,
    kill: AtWrite | None,
    environment: Mapping[str, str],
) -> NoReturn:
    try:
        os.setsid()
        die_with_parent()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.environ.update(environment)
        sys.argv = ["ogrpo", "train", *options]
        sys.addaudithook(_Watch(folder_of(options), changes, kill))
        code = main.main(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    _leave(code)


def _leave(code: int) -> NoReturn:
    """As an interpreter ends, but for what the parent's frames would clean up."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def folder_of(options: Sequence[str]) -> str:
    """The run's folder among the options."""
    (found,) = (option for option in options if option.startswith("--run-dir="))
    return found.removeprefix("--run-dir=")


class _Watch:
    """The audit hook."""

    def __init__(self, folder: str, changes: Path, kill: AtWrite | None) -> None:
        self._folder, self._kill, self._seen = folder + "/", kill, 0
        self._notes = os.open(changes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, event: str, arguments: tuple) -> None:
        if event not in CHANGES and not (event == "open" and _writes(arguments)):
            return
        path = os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else ""
        if not path.startswith(self._folder):
            return
        self._seen += 1
        os.write(self._notes, f"{event} {path.removeprefix(self._folder)}\n".encode())
        if self._kill is not None and self._seen == self._kill.number:
            self._die(self._kill.delay)

    def _die(self, delay: float) -> None:
        if delay:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def _writes(arguments: tuple) -> bool:
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return not set(mode).isdisjoint("wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not flags & os.O_DIRECTORY)
