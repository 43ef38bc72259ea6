"""NCCL without a GPU: the stand-in library, a trainer's side on it, and workers as vLLM's are."""

import base64
import ctypes
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from ogrpo.rollout.endpoint import Service
from ogrpo.rollout.nccl import FLOAT32, SUM, UINT8, Nccl, UniqueId

SOURCE = Path(__file__).with_name("stand_in.c")


def build(folder):
    """The stand-in, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the stand-in of libnccl")
    made = folder / "stand_in.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-pthread", "-o", str(made), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def on_host(array):
    """A JAX buffer, on the host in place of a GPU, and its address."""
    buffer = jax.device_put(array, jax.devices("cpu")[0]).block_until_ready()
    return buffer, buffer.unsafe_buffer_pointer()


def trainers(library, monkeypatch, place_fn=on_host):
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", str(library))
    return Nccl(place_fn, cuda=str(library))


class Faulty:
    """Puts pieces on the GPU as they are, but for the nth, the warm-up's included."""

    def __init__(self, act, nth):
        self.act, self.left = act, nth

    def __call__(self, array):
        self.left -= 1
        return on_host(self.act(array) if self.left == 0 else array)


def out_of_memory(*_):
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


class Worker:
    """The calls that `PyNcclCommunicator` makes: they block, and a sum comes first."""

    def __init__(self, library, unique_id, ranks, rank=1):
        self._library, self._comm = ctypes.CDLL(str(library)), ctypes.c_void_p()
        given = UniqueId.from_buffer_copy(base64.b64decode(unique_id))
        self._library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId]
        self._call("ncclCommInitRank", ctypes.byref(self._comm), ranks, given, rank)
        one, total = ctypes.c_float(0), ctypes.c_float(9)
        sums = ctypes.byref(one), ctypes.byref(total), ctypes.c_size_t(1), FLOAT32, SUM
        self._call("ncclAllReduce", *sums, self._comm, None)
        assert total.value == 0

    def _call(self, name, *arguments):
        if result := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"NCCL error: {result}")

    def read(self, size):
        piece = np.zeros(size, np.uint8)
        place = piece.ctypes.data_as(ctypes.c_void_p)
        count = ctypes.c_size_t(size)
        self._call("ncclBroadcast", None, place, count, UINT8, 0, self._comm, None)
        return piece.data

    def close(self):
        self._call("ncclCommAbort", self._comm)


class BroadcastService(Service):
    """The in-repo server as one with a GPU would be."""

    library = None
    said = 23203

    def describe(self):
        return {**super().describe(), "nccl": self.said}

    def _served(self):
        return replace(super()._served(), receive_fn=partial(Worker, self.library))
