"""Folders that belong to one process at a time, by `flock` on a file in them.

The kernel keeps the lock and lets go of it when the process ends, however it ends; the file stays.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

NAME = ".ogrpo.lock"
WITHOUT = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system answers that knows no locks."""
LONGEST_NOTE = 100_000
_handles: dict[Path, int] = {}
"""Open files of this process that hold a lock."""


class FolderInUse(ValueError):
    """A folder that another process holds."""


class NoLocks(OSError):
    """A file system that knows no locks."""


def take(folder: Path, command: str, warn: Callable[[str], object] | None = None) -> None:
    """Takes a folder for this process until it ends; `held` lets go of it before.

    Args:
      folder: it exists, and can be written to.
      command: what this process does, for those who are refused.
      warn: gets a line where the file system knows no locks, and the folder is not taken.

    Raises:
      FolderInUse: a process has it; the message says which.
      NoLocks: the file system cannot say whether one has, and there is no `warn`.
    """
    path = folder.resolve() / NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read(handle)
        os.close(handle)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise FolderInUse(f"{folder} is in use by {holder}") from None
        if error.errno not in WITHOUT:
            raise
        if warn is None:
            raise NoLocks(error.errno, error.strerror, str(path)) from error
        warn(f"{folder} has no locks ({error.strerror}): let one process use it")
        return
    _handles[path] = handle
    note = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        "command": command,
    }
    with suppress(OSError):  # a full disk: the lock holds without a name in it
        os.ftruncate(handle, 0)
        os.pwrite(handle, (json.dumps(note) + "\n").encode(), 0)


@contextmanager
def held(folder: Path, command: str, warn: Callable[[str], object] | None = None) -> Iterator[None]:
    """Holds a folder for this process within the block; see `take`."""
    take(folder, command, warn)
    try:
        yield
    finally:
        if (handle := _handles.pop(folder.resolve() / NAME, None)) is not None:
            os.close(handle)


def belongs_here(folder: Path) -> bool:
    """Whether this process holds a folder already."""
    return folder.resolve() / NAME in _handles


def _read(handle: int) -> str:
    """Returns who holds a lock, as far as its file says."""
    try:
        note = json.loads(os.pread(handle, LONGEST_NOTE, 0))
        return (
            f"process {note['pid']} on {note['host']} since {note['since']} ({note['command']}):"
            " wait for it, stop it, or choose another folder"
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process: wait for it, or choose another folder"


def _let_go() -> None:
    """Closes inherited locks after a fork, which would outlive the parent's death."""
    for handle in _handles.values():
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_let_go)
