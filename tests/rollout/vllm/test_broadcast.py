"""A release by broadcast: the bridge's protocol end to end, over the stand-in of libnccl."""

import re

import numpy as np
import pytest

from ogrpo.rollout import nccl
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.vllm import Options, PublishRefused, Refused, Unavailable
from ogrpo.rollout.weights import Store
from tests.rollout.vllm import broadcast, contract, world
from tests.rollout.vllm.broadcast import BroadcastService, Faulty, Worker, out_of_memory, trainers
from tests.rollout.vllm.updates import loading, on, serving, write

pytestmark = pytest.mark.slow

CONFIG = world.decoder()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return broadcast.build(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture
def own(library, monkeypatch):
    """The trainer's side."""
    return trainers(library, monkeypatch)


@pytest.fixture
def server(farm, library, monkeypatch):
    for module in (nccl, releases):
        monkeypatch.setattr(module, "PIECE", 3000)
    monkeypatch.setattr(BroadcastService, "library", library)
    return farm.start(kind=BroadcastService)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "releases", keep=8)


def connected(own, *urls):
    return contract.connect(urls, CONFIG, transport="nccl", nccl=own)


def test_pushes_are_proven_one_after_the_other(server, own):
    with connected(own, server.url) as engine:
        contract.check_pushes(engine, CONFIG)
        metrics = engine.metrics()
    assert metrics["sync/bytes_sent"] == metrics["sync/bytes"] > 3 * 3000


def test_garbage_is_refused_and_the_live_model_stays(server, own, monkeypatch):
    with connected(own, server.url) as engine:
        params = world.make_params(CONFIG, 0)
        contract.check_garbage(engine, CONFIG, params, "nan", monkeypatch)


def test_workers_leave_the_communicator_when_all_have_the_release(server, store, own, monkeypatch):
    """One that is done may still be passing pieces on: it leaves when it is told to install."""
    log = []
    for name in ("read", "close"):
        act = getattr(Worker, name)

        def logged(worker, *size, act=act, name=name):
            log.append(name)
            return act(worker, *size)

        monkeypatch.setattr(Worker, name, logged)
    install = server.service._install
    monkeypatch.setattr(server.service, "_install", lambda new: log.append("in") or install(new))
    for version in (1, 2):
        log.clear()
        on(server.url, loading(write(store, version), own))
        assert log == ["read"] * (len(log) - 2) + ["close", "in"]
    assert server.service.place.joined is None


def test_several_servers_have_a_communicator_each_and_one_that_comes_back_another(
    server, farm, own
):
    other, policy = farm.start(kind=BroadcastService), world.make_params(CONFIG, 1)
    with connected(own, server.url, other.url) as engine:
        engine.publish(policy, 1)
        assert serving(server.url)[0] == 1
        assert serving(server.url) == serving(other.url)
    with connected(own, server.url) as engine:
        engine.publish(policy, 1)
        farm.reset(server)
        groups = engine.generate(world.PROMPTS, contract.SAMPLING, 1)
    assert world.worst_gap(CONFIG, policy, groups) < contract.EXACT
    assert serving(server.url)[0] == 1


def one_bit(array):
    changed = np.array(array)
    changed[7] ^= 1
    return changed


def fail_at_the_third_piece(patch):
    left, read = [2], Worker.read

    def fail(worker, size):
        left[0] -= 1
        return out_of_memory() if left[0] < 0 else read(worker, size)

    patch.setattr(Worker, "read", fail)


@pytest.mark.parametrize(
    ("place_fn", "error", "message"),
    [
        (Faulty(one_bit, 4), PublishRefused, r"has sha256.*goes on serving version 1"),
        (Faulty(out_of_memory, 4), Unavailable, r"broke off.*trainer's side: RESOURCE_EXHAUSTED"),
        (None, Unavailable, r"broke off: RESOURCE.*goes on serving version 1"),
    ],
    ids=["a bit changes", "the trainer fails", "a worker fails"],
)
def test_what_goes_wrong_on_the_way_leaves_the_old_model(
    server, store, own, monkeypatch, place_fn, error, message
):
    first, second = write(store, 1), write(store, 2)
    on(server.url, loading(first, own))
    with monkeypatch.context() as patch:
        if place_fn is None:
            fail_at_the_third_piece(patch)
        else:
            patch.setattr(own, "place_fn", place_fn)
        with pytest.raises(error, match=message):
            on(server.url, loading(second, own))
    assert serving(server.url) == (1, first.sha256)
    assert not [*server.service.place.scratch.glob("*.safetensors")][1:]  # the live one's alone
    on(server.url, loading(second, own))
    assert serving(server.url) == (2, second.sha256)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("its workers are on cpu, not on CUDA", "takes no broadcasts, as its workers are on cpu"),
        (22909, "has NCCL 2.29.9 and the trainer 2.32.3"),
    ],
)
def test_a_server_that_cannot_join_is_refused_with_the_remedy(
    server, own, monkeypatch, said, message
):
    monkeypatch.setattr(BroadcastService, "said", said)
    with pytest.raises(Refused, match=f"{re.escape(message)}.*--rollout.transport folder or url"):
        connected(own, server.url)


def test_a_server_without_a_gpu_refuses_a_broadcast(farm, store, own):
    with pytest.raises(PublishRefused, match="no broadcasts are taken here"):
        on(farm.start().url, loading(write(store, 1), own))


@pytest.mark.parametrize("source", [{}, {"manifest": 1, "unique_id": "", "ranks": 2}, [], "x"])
def test_a_broadcast_that_does_not_say_what_it_has_to_is_refused(server, store, source):
    async def ask(api, _):
        release = write(store, 1)
        await api.start_weight_update()
        ticket = {"version": 1, "manifest_sha256": release.manifest_sha256}
        await api.update_weights({**ticket, "broadcast": source}, seconds=20)

    with pytest.raises(Unavailable, match="500"):
        on(server.url, ask)
    assert "give its three entries" in server.service.place.last["error"]


def test_options_that_do_not_go_together_are_refused(own):
    with pytest.raises(ValueError, match="push is 'adapters' and transport 'nccl'"):
        Options(transport="nccl", push="adapters")
    with pytest.raises(ValueError, match="transport is 'nccl': nccl goes with 'nccl' alone"):
        connected(None, "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="transport is 'folder'"):
        contract.connect(["http://127.0.0.1:1"], CONFIG, nccl=own)
