"""NCCL from a trainer without torch: a release's bytes, broadcast by a GPU to a server's workers.

    trainer, rank 0     the release's file -> a piece in a JAX buffer on the GPU -> ncclBroadcast
    workers, rank 1..   ncclBroadcast -> a piece on their GPU -> a file of theirs, which is checked

It has not yet been run on a GPU: calls and protocol are tested against the real library as far as
it goes without one, and against a stand-in of the same functions that carries bytes over sockets.

A communicator lives for one push to one server, so that whoever dies leaves nothing to repair and
holds up no other server. It does not block (as NCCL's guide has it for what may fail): whatever has
been begun is asked after until it is done, given up here, or has stood still for too long.
"""

import base64
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ogrpo.rollout.extension.ogrpo_releases import PIECE, PULL_SECONDS

PlaceFn = Callable[[np.ndarray], tuple[Any, int]]
"""Puts an array on the GPU: the buffer, complete and in place as long as it is held, and its
address."""
LOOK_SECONDS = 0.0005
DONE, IN_PROGRESS, NOT_READY = 0, 7, 600
"""ncclSuccess and CUDA_SUCCESS, ncclInProgress, CUDA_ERROR_NOT_READY."""
UINT8, FLOAT32, SUM = 1, 7, 0
NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: neither waits for XLA's streams nor is waited for by them."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId, the common knowledge of those who are to meet."""

    _fields_ = (("internal", ctypes.c_byte * 128),)


class Config(ctypes.Structure):
    """The fields that `ncclConfig_t` began with in 2.14, and of which later versions know that."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


_INT, _PLACE, _COUNT = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
_OUT = ctypes.POINTER(_PLACE)
NCCL: Mapping[str, list[Any]] = {
    "ncclGetVersion": [ctypes.POINTER(_INT)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRankConfig": [_OUT, _INT, UniqueId, _INT, ctypes.POINTER(Config)],
    "ncclAllReduce": [_PLACE, _PLACE, _COUNT, _INT, _INT, _PLACE, _PLACE],
    "ncclBroadcast": [_PLACE, _PLACE, _COUNT, _INT, _INT, _PLACE, _PLACE],
    "ncclCommGetAsyncError": [_PLACE, ctypes.POINTER(_INT)],
    "ncclCommAbort": [_PLACE],
}
CUDA: Mapping[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGet": [ctypes.POINTER(_INT), _INT],
    "cuDevicePrimaryCtxRetain": [_OUT, _INT],
    "cuCtxSetCurrent": [_PLACE],
    "cuStreamCreate": [_OUT, ctypes.c_uint],
    "cuStreamQuery": [_PLACE],
    "cuStreamDestroy_v2": [_PLACE],
}
"""Functions and their arguments; each returns an int, 0 if it did what was asked."""


class NcclError(RuntimeError):
    """An error of NCCL or CUDA."""


def library() -> str:
    """Returns the NCCL to load: VLLM_NCCL_SO_PATH, the package beside JAX, or the system's."""
    if path := os.environ.get("VLLM_NCCL_SO_PATH"):
        return path
    package = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = package.submodule_search_locations if package else None
    files = [Path(folder) / "lib" / "libnccl.so.2" for folder in folders or ()]
    return next((str(file) for file in files if file.is_file()), "libnccl.so.2")


def dotted(version: int) -> str:
    """Returns 23203 as "2.32.3"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _opened(name: str, functions: Mapping[str, list[Any]], remedy: str) -> ctypes.CDLL:
    try:
        opened = ctypes.CDLL(name)
        for function, arguments in functions.items():
            getattr(opened, function).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NcclError(f"{name} cannot be used ({error}): {remedy}") from error
    return opened


class Nccl:
    """The library, on one of this process's GPUs.

    Args:
        place_fn: see `PlaceFn`.
        ordinal: the GPU, among those that CUDA shows to this process.
        cuda: the driver's library.

    Raises:
        NcclError: a library or the GPU is missing.
    """

    def __init__(self, place_fn: PlaceFn, ordinal: int = 0, cuda: str = "libcuda.so.1") -> None:
        self.place_fn = place_fn
        other = "or --rollout.transport folder or url"
        self._nccl = _opened(library(), NCCL, f"pip install 'ogrpo[gpu]', {other}")
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self._cuda = _opened(cuda, CUDA, f"install NVIDIA's driver, {other}")
        version, device, self._context = _INT(), _INT(), _PLACE()
        self.nccl("ncclGetVersion", ctypes.byref(version))
        self.version = version.value
        self.cuda("cuInit", 0)
        self.cuda("cuDeviceGet", ctypes.byref(device), ordinal)
        self.cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def check(self, state: int, name: str) -> None:
        """Raises what a state says unless it is done or under way."""
        if state not in (DONE, IN_PROGRESS):
            said = self._nccl.ncclGetErrorString(state).decode(errors="replace")
            raise NcclError(f"{name}: {said} ({state})")

    def nccl(self, name: str, *arguments: Any) -> None:
        """Begins what a function of NCCL does."""
        self.check(getattr(self._nccl, name)(*arguments), name)

    def cuda(self, name: str, *arguments: Any) -> bool:
        """Calls a function of the driver; whether it is ready, where it says so."""
        result = getattr(self._cuda, name)(*arguments)
        if result not in (DONE, NOT_READY):
            raise NcclError(f"{name}: CUDA error {result}")
        return result == DONE

    def unique_id(self) -> UniqueId:
        """Returns a meeting point for those who are to be in a communicator."""
        made = UniqueId()
        self.nccl("ncclGetUniqueId", ctypes.byref(made))
        return made

    @contextmanager
    def stream(self) -> Iterator[ctypes.c_void_p]:
        """Yields a stream for this thread alone."""
        made = _PLACE()
        self.cuda("cuCtxSetCurrent", self._context)
        self.cuda("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        try:
            yield made
        finally:
            self.cuda("cuStreamDestroy_v2", made)


class _Abandoned(Exception):
    pass


class Broadcast:
    """A file on its way to the workers of one server, in a thread of its own.

    Args:
        nccl: the library.
        file: what they get.
        workers: how many there are.
    """

    def __init__(self, nccl: Nccl, file: Path, workers: int) -> None:
        self.ranks = workers + 1
        self._nccl, self._file, self._id = nccl, file, nccl.unique_id()
        self.unique_id = base64.b64encode(bytes(self._id.internal)).decode()
        self._comm = _PLACE()
        self._abandoned, self._over = threading.Event(), threading.Event()

    def end(self, *, well: bool) -> None:
        """Says that the workers have what they were sent, or that nobody needs it any more."""
        if not well:
            self._abandoned.set()
        self._over.set()

    def run(self) -> None:
        """Sends the file; returns after `end`, which nobody's receiving outlasts.

        Raises:
            NcclError: it could not be sent.
        """
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0)
        place, how = ctypes.byref(self._comm), ctypes.byref(config)
        with self._nccl.stream() as stream:
            try:
                self._nccl.nccl("ncclCommInitRankConfig", place, self.ranks, self._id, 0, how)
                self._wait(None)
                # vLLM's communicator begins with this sum, which all have to take part in.
                self._send("ncclAllReduce", np.zeros(1, np.float32), stream, FLOAT32, SUM)
                raw = np.memmap(self._file, np.uint8, "r")
                for start in range(0, len(raw), PIECE):
                    self._send("ncclBroadcast", raw[start : start + PIECE], stream, UINT8, 0)
                self._over.wait()
            except _Abandoned:
                return
            finally:
                if self._comm:
                    self._nccl.nccl("ncclCommAbort", self._comm)

    def _send(self, name: str, array: np.ndarray, stream: ctypes.c_void_p, *kind: int) -> None:
        held, place = self._nccl.place_fn(array)
        self._nccl.nccl(name, place, place, len(array), *kind, self._comm, stream)
        self._wait(None)
        self._wait(stream)
        del held  # not before the stream is done with it

    def _wait(self, stream: ctypes.c_void_p | None) -> None:
        """Returns when the last call is on the stream, and done if the stream is named.

        Raises:
            NcclError: a fault of the communicator, or nothing happened for `PULL_SECONDS`.
        """
        ends, state = time.monotonic() + PULL_SECONDS, _INT()
        while True:
            self._nccl.nccl("ncclCommGetAsyncError", self._comm, ctypes.byref(state))
            self._nccl.check(state.value, "the broadcast")
            begun = state.value == DONE
            if begun and (stream is None or self._nccl.cuda("cuStreamQuery", stream)):
                return
            if self._abandoned.wait(LOOK_SECONDS):
                raise _Abandoned
            if time.monotonic() > ends:
                raise NcclError(f"the server's workers took nothing for {PULL_SECONDS:g} s")
