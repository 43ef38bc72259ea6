"""The script `_serve.py` as a process: its pipes, its group, its end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ogrpo.system._serve import LENGTH

_SCRIPT = Path(__file__).with_name("_serve.py")
_PATIENCE = 1.0  # seconds


class Child:
    """The process and its pipes."""

    def __init__(self, memory: int) -> None:
        self.listener: threading.Thread | None = None
        self._owner = os.getpid()
        self._sending, self._ending = threading.Lock(), threading.Lock()
        theirs, self._life = os.pipe()  # its closing ends the process, even from a killed caller
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SCRIPT), str(memory), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs,),
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", **os.environ, "JAX_PLATFORMS": "cpu"},
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def send(self, body: bytes, seconds: float) -> None:
        """Write a request; raise TimeoutError if it is not taken within the time."""
        deadline = time.monotonic() + seconds
        if not self._sending.acquire(timeout=seconds):
            raise TimeoutError
        try:
            with contextlib.suppress(BrokenPipeError):  # the listener learns that it ended
                self._write(memoryview(LENGTH.pack(len(body)) + body), deadline)
        finally:
            self._sending.release()

    def _write(self, data: memoryview, deadline: float) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        if pipe.closed:
            return
        ready = select.poll()
        ready.register(pipe, select.POLLOUT)
        while data:
            left = deadline - time.monotonic()
            if left <= 0 or not ready.poll(left * 1000):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(pipe.fileno(), data) :]

    def receive(self) -> bytes:
        """Return the next reply, or nothing when there are no more."""
        header = self._read(LENGTH.size)
        return self._read(*LENGTH.unpack(header)) if header else b""

    def _read(self, size: int) -> bytes:
        pipe, data = self._process.stdout, bytearray()
        assert pipe is not None
        while len(data) < size:
            if not (more := pipe.read(size - len(data))):
                return b""
            data += more
        return bytes(data)

    def stopped(self) -> bool:
        """Tell whether somebody stopped the process (SIGSTOP; on Linux, elsewhere not known)."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def end(self) -> int:
        """Kill the group, collect the process and close the pipes; return its exit code."""
        if os.getpid() != self._owner:  # a fork of the caller
            return 0
        with self._ending:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                os.close(self._life)
            code = self._process.wait()
        with self._sending:
            assert self._process.stdin is not None
            self._process.stdin.close()
        if self.listener is not None and self.listener is not threading.current_thread():
            self.listener.join(_PATIENCE)  # what left the group may keep its pipe open
        return code

    def close_output(self) -> None:
        """Close the pipe of replies; the listener does, who alone knows that nobody reads it."""
        assert self._process.stdout is not None
        self._process.stdout.close()
