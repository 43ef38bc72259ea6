"""The process in which functions run that may never end: it is killed from outside when they do.

It runs as a script, so that it imports neither `ogrpo` nor JAX nor the caller's `__main__`.
Requests arrive as pickles and answers leave as JSON, each behind its length in 8 bytes: whoever
started the process unpickles nothing that a function made. What functions print goes to the
standard error. A plain function runs in the main thread with no event loop running, as in TRL's
trainer; coroutines share a loop in a thread beside it.
"""

import asyncio
import importlib.util
import json
import math
import os
import pickle
import queue
import reprlib
import resource
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, BinaryIO

LENGTH = struct.Struct(">Q")
LARGEST = float.fromhex("0x1.fffffep127")  # of float32
LAST_LINES = 8  # of a traceback
NOT_LISTS = (str, bytes, bytearray, Mapping, set, frozenset)

Function = Callable[..., Any]
RawReply = dict[str, Any]


def import_file(name: str, path: str) -> ModuleType:
    """Imports a file as module `name`; modules beside the file come first while it is imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    if folder not in sys.path:  # last: a random.py beside the file must not hide Python's own later
        sys.path.append(folder)
    return module


def compute(function: Function, arguments: Mapping[str, Any], count: int | None) -> RawReply:
    """Calls a plain function and returns what came of it, as `describe` does."""
    returned = function(**arguments)
    if hasattr(returned, "__await__"):
        with asyncio.Runner() as runner:
            returned = runner.get_loop().run_until_complete(returned)
    return describe(returned, count)


def describe(returned: Any, count: int | None) -> RawReply:
    """Returns `{"result": ...}`; with a count, the result is a list of so many numbers.

    In place of a value that is not a finite float32 stands its kind and a message.
    """
    if count is None:
        return {"result": returned}
    if isinstance(returned, NOT_LISTS) or not hasattr(returned, "__iter__"):
        what = f"{_short(returned)}, not a list with a number for each completion"
    elif len(values := list(returned)) != count:
        what = f"{len(values)} values for {count} completions"
    else:
        return {"result": [_number(value) for value in values]}
    return {"kind": "wrong count", "message": f"returned {what}"}


def refusal(error: BaseException) -> RawReply:
    """Returns the kind of an error, and its message with the traceback's last lines."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    lines = "".join(traceback.format_tb(trace)).splitlines()[-LAST_LINES:]
    message = "".join(traceback.format_exception_only(error)).strip()
    kind = "memory" if isinstance(error, MemoryError) else "raised"
    return {"kind": kind, "message": "\n".join([f"raised {message}", *lines])}


def _number(value: Any) -> float | dict[str, str]:
    if value is None:
        return {"kind": "none", "message": "gave None"}
    try:
        if isinstance(value, (str, bytes, bytearray)) or getattr(value, "shape", ()) != ():
            raise TypeError  # though float("1") is 1, and so is float of an array of one
        number = float(value)
    except OverflowError:
        number = math.inf
    except Exception:  # a __float__ of the user's own may raise anything
        return {"kind": "not a number", "message": f"gave {_short(value)}"}
    if not abs(number) <= LARGEST:
        return {"kind": "not finite", "message": f"gave {_short(value)}"}
    return number


def _short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # a __repr__ of the user's own may raise anything
        return f"a {type(value).__name__}"


class RewardService:
    """Answers requests until the pipe ends."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO) -> None:
        self._requests, self._replies = requests, replies
        self._functions: dict[str, Function] = {}
        self._plain: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Loads the functions, then answers for ever."""
        broken = self._load(pickle.loads(self._receive() or _end()))
        if broken is not None:
            return self._send({"id": None, **broken})
        threading.Thread(target=self._read, daemon=True).start()
        self._send({"id": None, "ready": True})
        while True:
            self._answer_plain(self._plain.get())

    def _load(self, parcel: dict[str, Any]) -> RawReply | None:
        sys.path[:] = parcel["path"]
        for name, function in parcel["functions"].items():
            try:
                for module, path in parcel["files"].items():
                    if module not in sys.modules and module.encode() in function:
                        import_file(module, path)
                self._functions[name] = pickle.loads(function)
            except BaseException as error:  # what a user's module raises at import is an answer
                return {"broken": name, **refusal(error)}
        return None

    def _read(self) -> None:
        try:
            while request := self._receive():
                order = pickle.loads(request)
                if order["asynchronous"]:
                    answer = self._answer_coroutine(order)
                    asyncio.run_coroutine_threadsafe(answer, self._running())
                else:
                    self._plain.put(order)
        except BaseException:  # a process that hears nothing more is of no use
            traceback.print_exc()
        _end()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return self._loop

    def _answer_plain(self, request: dict[str, Any]) -> None:
        begun = time.monotonic()
        try:
            arguments = pickle.loads(request["arguments"])
            reply = compute(self._functions[request["name"]], arguments, request["count"])
        except BaseException as error:  # whatever the function raises is an answer, SystemExit too
            reply = refusal(error)
        self._reply(request, begun, reply)

    async def _answer_coroutine(self, request: dict[str, Any]) -> None:
        begun, bound = time.monotonic(), asyncio.timeout(request["seconds"])
        try:
            async with bound:
                arguments = pickle.loads(request["arguments"])
                returned = await self._functions[request["name"]](**arguments)
            reply = describe(returned, request["count"])
        except BaseException as error:
            reply = {"kind": "timeout", "message": ""} if bound.expired() else refusal(error)
        self._reply(request, begun, reply)

    def _reply(self, request: dict[str, Any], begun: float, reply: RawReply) -> None:
        about = {"id": request["id"], "seconds": time.monotonic() - begun}
        try:
            self._send({**about, **reply})
        except (TypeError, ValueError) as error:  # without a count, a result may be anything
            self._send({**about, **refusal(error)})

    def _receive(self) -> bytes:
        header = self._requests.read(LENGTH.size)
        return self._requests.read(*LENGTH.unpack(header)) if len(header) == LENGTH.size else b""

    def _send(self, reply: RawReply) -> None:
        body = json.dumps(reply).encode()
        sys.stdout.flush()
        with self._writing:
            self._replies.write(LENGTH.pack(len(body)) + body)
            self._replies.flush()


def _end() -> Any:
    """Ends this process and the processes that functions started: nobody is left to read."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_with(life: int) -> None:
    """Lets the kernel kill the whole process group when the pipe's other end closes.

    The kernel's signal needs no thread: it works while a call in C holds the interpreter's lock.
    (PR_SET_PDEATHSIG would fire when the thread ends that started this process.) Elsewhere than on
    Linux the thread that reads requests sees their end, unless such a call keeps it from running.
    """
    if sys.platform == "linux":
        import fcntl
        import select

        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([life], [], [], 0)[0]:  # it had closed before
            _end()


def main(memory: int, life: int) -> None:
    """Serves with at most `memory` bytes of address space (enforced on Linux)."""
    die_with(life)
    os.set_inheritable(life, False)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nowhere:
        os.dup2(nowhere.fileno(), 0)
    os.dup2(2, 1)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    RewardService(requests, replies).run()


if __name__ == "__main__":
    _itself = sys.modules["__main__"]  # a module that nothing refers to would be emptied
    sys.modules["__main__"] = ModuleType("__main__")  # the caller's, as far as functions can see
    main(int(sys.argv[1]), int(sys.argv[2]))
