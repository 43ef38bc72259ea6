"""A verifying process, seen by the one who asks it: start, ask within a time, end."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

_SCRIPT = Path(__file__).with_name("_worker.py")
_START_SECONDS = 120.0  # a start takes about one; a machine at its limits takes longer


class VerifyingProcess:
    """One `_worker.py`, started at the first request and again when it is gone.

    Not thread-safe. The process and its copies form a process group of their own, which is killed
    when the object is dropped and when Python ends.

    Args:
        seconds: of CPU time, the bound on one comparison, kept by the process itself.
        wall_seconds: the bound on one reply, for a process that hangs or was stopped.
    """

    def __init__(self, seconds: float, wall_seconds: float) -> None:
        self.seconds = seconds
        self.wall_seconds = wall_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes) -> str | None:
        """Return the reply to one line, or None if the process ended or did not reply in time."""
        process = self._running()
        reply = None
        try:
            reply = _exchange(process, request, self.wall_seconds)
        finally:  # also when interrupted: a late reply must not meet the next question
            if reply is None:
                self.stop()
        return reply

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._end()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.stop()  # it was ended from outside, while idle
        if self._process is None:
            self._process = _start(self.seconds)
            self._end = weakref.finalize(self, _kill, self._process)
        return self._process


def _start(seconds: float) -> subprocess.Popen[bytes]:
    # -P: the script's folder holds a math.py, which must not hide the standard library's.
    command = [sys.executable, "-P", str(_SCRIPT), str(seconds)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, process_group=0
    )
    reply = None
    try:
        reply = _read_line(process, _START_SECONDS)
    finally:
        if reply != "ready":
            _kill(process)
    if reply != "ready":
        raise RuntimeError(
            f"the process that verifies answers did not start (exit code {process.returncode}); "
            f"to see why, run: {' '.join(command)}"
        )
    return process


def _exchange(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> str | None:
    assert process.stdin is not None
    try:
        process.stdin.write(request)  # fits into the pipe, which is empty: it does not wait
    except BrokenPipeError:
        return None
    return _read_line(process, seconds)


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> str | None:
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(deadline - time.monotonic(), 0)):
                return None
            part = os.read(process.stdout.fileno(), 256)
            if not part:
                return None
            line += part
    return line.decode().rstrip("\n")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it and its copies ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
