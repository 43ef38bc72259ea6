"""A process that can be killed at any time, for functions that may never end or take all memory."""

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cloudpickle

from ogrpo.system._serve import LENGTH

_CANCELLING = 1.0  # seconds that a coroutine has to give up after its time is over
_PATIENCE = 1.0  # seconds for the listener to end
_SCRIPT = Path(__file__).with_name("_serve.py")


CallFailure = Literal["raised", "timeout", "memory", "died", "wrong count"]


class Reply(NamedTuple):
    """The outcome of one call: a result, or the kind of its failure with a message."""

    result: Any = None
    kind: CallFailure | None = None  # None: it went well
    message: str = ""
    seconds: float = 0.0  # of wall time
    ended: bool = False  # the process ended, with every call that was under way in it
    outside: bool = False  # and it was neither the call nor we who stopped or killed it

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Reply":
        """Returns the reply that a process describes."""
        return cls(**{name: value for name, value in fields.items() if name in cls._fields})


def pickle_by_reference(module: str, name: str) -> bytes:
    """Returns a pickle of `module.name`, which is imported where it is loaded and not here."""
    return f"c{module}\n{name}\n.".encode()


class KilledAtStart(RuntimeError):
    """A process that was killed from outside before it was ready: worth another start."""


class WorkerProcess:
    """Runs named functions in a process group of its own, within bounds of time and memory.

    The process is a fresh interpreter and no fork; it imports neither `ogrpo` nor the caller's
    `__main__`, unless a function does. It has the caller's `sys.path`, folder and environment, but
    for two things: JAX finds only the CPU, as the accelerator is the trainer's, and hashes are not
    random, so that every process orders a set alike. Its standard output is the caller's standard
    error. It ends with the caller, however that ends. Calls may come from several threads; plain
    functions take turns in the process, coroutines run side by side.

    Args:
      functions: what `cloudpickle.dumps` made of each function, by name.
      memory_gib: GiB of address space that the process may have (on Linux; each process that a
        function starts has as much for itself).
      files: modules that functions are of and no import finds, by name.
    """

    def __init__(
        self, functions: Mapping[str, bytes], *, memory_gib: float, files: Mapping[str, str]
    ) -> None:
        self._memory_gib = memory_gib
        self._numbers = itertools.count()
        self._mail = _Mail()
        self._child = Child(int(memory_gib * 2**30))
        weakref.finalize(self, self._child.end)
        listen = threading.Thread(target=_listen, args=(self._child, self._mail), daemon=True)
        self._child.listener = listen
        listen.start()
        self._parcel = {
            "path": [entry or os.getcwd() for entry in sys.path],
            "files": dict(files),
            "functions": dict(functions),
        }

    @property
    def alive(self) -> bool:
        """Whether the process can be asked."""
        return self._mail.ended is None

    def load(self, seconds: float) -> None:
        """Waits until the functions are loaded.

        Raises:
          ValueError: a function cannot be loaded there; it is named, with the error.
          KilledAtStart: it was killed from outside.
          RuntimeError: the process ended otherwise, or took more than `seconds`.
        """
        future = self._mail.expect(None)
        try:
            self._child.send(cloudpickle.dumps(self._parcel), seconds)
            reply = future.result(seconds)
        except TimeoutError:
            self.kill("it did not start in time")
            raise RuntimeError(
                f"a process for functions was not ready after {seconds:g} s: what their modules do "
                "at import takes too long. Do it in the functions, or give more seconds."
            ) from None
        if "broken" in reply:
            self.kill("it could not load a function")
            raise ValueError(
                f"{reply['broken']} cannot be loaded in a process of its own: it {reply['message']}"
            )
        if "ready" not in reply:
            raise (KilledAtStart if reply.get("outside") else RuntimeError)(
                f"a process for functions did not start: {reply['message']}. The standard error "
                f"says why; it may have {self._memory_gib:g} GiB of address space."
            )

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        seconds: float,
        count: int | None = None,
        asynchronous: bool = False,
    ) -> Reply:
        """Calls a function, and kills the process if it takes more than `seconds` of wall time.

        Args:
          name: of the function.
          arguments: are handed to it by keyword.
          seconds: of wall time that it may run, sending it apart.
          count: asks for a list of so many finite float32 numbers: what is something else is
            replaced by its kind and a message. Without it the result is whatever JSON can say.
          asynchronous: the function is a coroutine. It is cancelled when its time is over, and
            the process is killed only if that does not help.

        Raises:
          ValueError: an argument cannot be pickled; it is named.
        """
        number = next(self._numbers)
        request = {"id": number, "name": name, "seconds": seconds, "count": count}
        request |= {"asynchronous": asynchronous, "arguments": _packed(arguments)}
        future = self._mail.expect(number)
        begun = time.monotonic()
        try:
            self._child.send(cloudpickle.dumps(request), seconds)
            begun = time.monotonic()
            reply = future.result(seconds + (_CANCELLING if asynchronous else 0.0))
        except TimeoutError:
            stopped = self._child.stopped()
            self.kill("another call in it overran")
            seconds = time.monotonic() - begun
            return Reply(kind="timeout", seconds=seconds, ended=True, outside=stopped)
        return Reply.of({"seconds": time.monotonic() - begun, **reply})

    def kill(self, reason: str = "it was closed") -> None:
        """Ends the process, what it started, and the calls under way in it."""
        self._mail.end(reason)
        self._child.end()


def _packed(arguments: Mapping[str, Any]) -> bytes:
    try:
        return cloudpickle.dumps(dict(arguments))
    except Exception as error:  # a __reduce__ of the user's own may raise anything
        bad = next((name for name in arguments if not _picklable(arguments[name])), None)
        raise ValueError(
            f"{bad!r} cannot be sent to a process: {error}. Give plain values."
        ) from error


def _picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


class Child:
    """The script `_serve.py` as a process: its pipes, its group, its end."""

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
        assert self._process.stdout is not None
        self._requests, self.replies = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)

    def send(self, body: bytes, seconds: float) -> None:
        """Writes a request; raises TimeoutError if it is not taken within the time."""
        deadline = time.monotonic() + seconds
        if not self._sending.acquire(timeout=seconds):
            raise TimeoutError
        try:
            with contextlib.suppress(BrokenPipeError):  # the listener learns that it ended
                self._write(memoryview(LENGTH.pack(len(body)) + body), deadline)
        finally:
            self._sending.release()

    def _write(self, data: memoryview, deadline: float) -> None:
        pipe = self._requests
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
        """Returns the next reply, or nothing when there are no more."""
        header = self._read(LENGTH.size)
        return self._read(*LENGTH.unpack(header)) if header else b""

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size and (more := self.replies.read(size - len(data))):
            data += more
        return bytes(data) if len(data) == size else b""

    def stopped(self) -> bool:
        """Tells whether somebody stopped the process (SIGSTOP; on Linux, elsewhere not known)."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def end(self) -> int:
        """Kills the group, collects the process and closes the pipes; returns its exit code."""
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
            self._requests.close()
        if self.listener is not None and self.listener is not threading.current_thread():
            self.listener.join(_PATIENCE)  # what left the group may keep its pipe open
        return code


class _Mail:
    """The replies that are waited for, by number."""

    def __init__(self) -> None:
        self.ended: str | None = None
        self._outside = False
        self._lock = threading.Lock()
        self._futures: dict[int | None, Future[dict[str, Any]]] = {}

    def expect(self, number: int | None) -> Future[dict[str, Any]]:
        """Returns the future of a reply."""
        with self._lock:
            future = self._futures.setdefault(number, Future())
            if self.ended is not None and not future.done():
                future.set_result(self._ending())
        return future

    def deliver(self, reply: dict[str, Any]) -> None:
        """Hands over a reply."""
        with self._lock:
            future = self._futures.pop(reply["id"], None)
            if future is not None and not future.done():
                future.set_result(reply)

    def end(self, reason: str, *, outside: bool = False) -> None:
        """Tells whoever still waits that the process ended, and why: the first reason counts."""
        with self._lock:
            if self.ended is None:
                self.ended, self._outside = reason, outside
            for future in self._futures.values():
                if not future.done():
                    future.set_result(self._ending())

    def _ending(self) -> dict[str, Any]:
        message = f"its process ended: {self.ended}"
        return {"kind": "died", "message": message, "ended": True, "outside": self._outside}


def _listen(child: Child, mail: _Mail) -> None:
    try:
        while body := child.receive():
            mail.deliver(json.loads(body))
    finally:
        code = child.end()
        ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        mail.end(ending, outside=-code in (signal.SIGKILL, signal.SIGTERM))
        child.replies.close()  # nobody else knows that nobody reads it
