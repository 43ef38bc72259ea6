"""NCCL by ctypes: against the real library as far as it goes without a GPU, and the stand-in."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from ogrpo.rollout import nccl
from ogrpo.rollout.nccl import Broadcast, Nccl, NcclError
from ogrpo.rollout.vllm import Refused
from ogrpo.serving.bridge import open_nccl
from tests.rollout.vllm import broadcast
from tests.rollout.vllm.broadcast import Worker, on_host, trainers

PIECE = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return broadcast.build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Three pieces and a half."""
    monkeypatch.setattr(nccl, "PIECE", PIECE)
    made = tmp_path / "model"
    made.write_bytes(np.random.default_rng(0).bytes(PIECE * 7 // 2))
    return made


@pytest.fixture
def real():
    try:
        ctypes.CDLL(nccl.library())
    except OSError:
        pytest.skip("no libnccl: install nvidia-nccl-cu12, or name it in VLLM_NCCL_SO_PATH")


def sizes(total):
    return [min(PIECE, total - start) for start in range(0, total, PIECE)]


def receive(library, sent, rank, size):
    worker = Worker(library, sent.unique_id, sent.ranks, rank)
    return b"".join(bytes(worker.read(each)) for each in sizes(size)), worker


# --- the real library --------------------------------------------------------------------------


def test_the_real_library_has_the_functions_and_says_its_version_and_errors(real, library):
    made = Nccl(on_host, cuda=str(library))
    assert made.version >= 21400  # what `Config` is of
    assert nccl.dotted(made.version).split(".")[0] == "2"
    with pytest.raises(NcclError, match=r"call: invalid argument.*\(4\)"):
        made.check(4, "call")
    made.check(nccl.IN_PROGRESS, "call")


def test_the_real_library_without_a_gpu_ends_a_broadcast_with_its_message(real, library, file):
    with pytest.raises(NcclError, match=r"ncclCommInitRankConfig: unhandled cuda error"):
        Broadcast(Nccl(on_host, cuda=str(library)), file, 1).run()


# --- what is missing ---------------------------------------------------------------------------


def test_jax_without_a_gpu_is_refused_with_the_remedy():
    with pytest.raises(Refused, match=r"no CUDA device here, only cpu.*folder or url"):
        open_nccl()


def test_a_missing_library_is_named_with_what_brings_it(library, monkeypatch):
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", str(library))
    with pytest.raises(NcclError, match=r"/no/libcuda.*install NVIDIA's driver"):
        Nccl(on_host, cuda="/no/libcuda.so")
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", "/no/libnccl.so")
    with pytest.raises(NcclError, match=r"/no/libnccl.so.*pip install 'ogrpo\[gpu\]'"):
        Nccl(on_host, cuda=str(library))


# --- the stand-in ------------------------------------------------------------------------------


class Wiped:
    """A buffer that is wiped when nobody holds it."""

    def __init__(self, array):
        self.array = np.array(array)

    def __del__(self):
        self.array[:] = 0


def wiped(array):
    made = Wiped(array)
    return made, made.array.ctypes.data


@contextmanager
def sending(sent):
    """The broadcast in a thread, given up at the end, and threads for its workers."""
    with ThreadPoolExecutor() as pool:
        try:
            yield pool, pool.submit(sent.run)
        finally:
            sent.end(well=False)


def test_every_rank_gets_every_byte_in_order(library, file, monkeypatch):
    sent = Broadcast(trainers(library, monkeypatch, wiped), file, 3)
    with sending(sent) as (pool, sender):
        size = file.stat().st_size
        got = [pool.submit(receive, library, sent, rank, size) for rank in (1, 2, 3)]
        assert {each.result()[0] for each in got} == {file.read_bytes()}
        assert not sender.done()  # nobody's communicator is torn down before all say so
        sent.end(well=True)
        sender.result()


def test_a_worker_that_dies_in_the_middle_ends_the_broadcast(library, file, monkeypatch):
    sent = Broadcast(trainers(library, monkeypatch), file, 2)
    with sending(sent) as (pool, sender):
        other = pool.submit(receive, library, sent, 2, file.stat().st_size)
        dying = Worker(library, sent.unique_id, 3, 1)
        dying.read(PIECE)
        dying.close()
        with pytest.raises(NcclError, match="remote process exited"):
            sender.result()
        with pytest.raises(RuntimeError, match="NCCL error: 6"):  # as the trainer's side is aborted
            other.result()
