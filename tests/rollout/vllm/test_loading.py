"""A release on its way into a paused server, by vLLM's weight update: who is told what."""

import asyncio

import pytest

from ogrpo.bridge import named_tensors
from ogrpo.rollout.vllm import Broken, PublishRefused, Unavailable
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Expected, describe, look
from ogrpo.rollout.vllm.loading import load
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Store
from tests.rollout.vllm import world

CONFIG = world.decoder()
EXPECTED = Expected(world.VOCAB, world.EOS, 60, ())


def on(endpoint, act, **options):
    """What `act(api, found)` makes of a server that was looked at first."""

    async def work():
        api = ServerApi(endpoint.url, headers={}, timeout=20.0)
        try:
            found = await look(api, EXPECTED)
            return await act(api, found, **options)
        finally:
            await api.close()

    return asyncio.run(work())


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "releases", keep=8)


def write(store, version):
    return store.write(named_tensors(CONFIG, world.make_params(CONFIG, version)), version)


def loading(release, share=None):
    return lambda api, found: load(api, found, release, share=share)


def serving(endpoint):
    found = on(endpoint, lambda api, _: describe(api))
    return found["version"], found["sha256"]


def test_a_release_is_loaded_and_its_bytes_are_counted(farm, store):
    server, release = farm.start(), write(store, 1)
    assert on(server, loading(release)) == 0
    assert serving(server) == (1, release.sha256)
    share, second = WeightShare(store.folder), write(store, 2)
    try:
        assert on(server, loading(second, share)) == second.bytes
    finally:
        share.close()
    assert serving(server) == (2, second.sha256)


def test_an_update_that_a_dead_trainer_left_open_is_closed(farm, store):
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    on(server, loading(first))

    async def die(api, _):
        await api.start_weight_update()
        ticket = {"version": 9, "manifest_sha256": second.manifest_sha256}
        await api.update_weights({**ticket, "path": str(second.folder)}, seconds=20)

    on(server, die)
    assert serving(server) == (1, first.sha256)  # what it had staged is nowhere live
    third = write(store, 3)
    on(server, loading(third))
    assert serving(server) == (3, third.sha256)


def test_a_second_update_in_the_middle_of_ours_changes_nothing(farm, store, monkeypatch):
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    update = ServerApi.update_weights

    async def interrupted(api, body, *, seconds):
        if body.get("install"):
            with pytest.raises(Unavailable, match="500"):
                await api.start_weight_update()
        await update(api, body, seconds=seconds)

    on(server, loading(first))
    monkeypatch.setattr(ServerApi, "update_weights", interrupted)
    on(server, loading(second))
    assert serving(server) == (2, second.sha256)


def test_another_trainer_that_stages_in_between_is_noticed(farm, store, monkeypatch):
    server, first, second, foreign = farm.start(), *(write(store, n) for n in (1, 2, 3))
    update = ServerApi.update_weights

    async def overtaken(api, body, *, seconds):
        if body.get("install"):
            other = {"version": 3, "manifest_sha256": foreign.manifest_sha256}
            await update(api, {**other, "path": str(foreign.folder)}, seconds=seconds)
        await update(api, body, seconds=seconds)

    on(server, loading(first))
    monkeypatch.setattr(ServerApi, "update_weights", overtaken)
    with pytest.raises(PublishRefused, match=r"not staged here.*goes on serving what it had"):
        on(server, loading(second))
    assert serving(server) == (1, first.sha256)


def test_what_is_out_of_reach_is_worth_another_attempt(farm, store):
    server, first, gone = farm.start(), write(store, 1), write(store, 2)
    (gone.folder / "model.safetensors").unlink()
    on(server, loading(first))
    with pytest.raises(Unavailable, match="must see the same path"):
        on(server, loading(gone))
    assert serving(server) == (1, first.sha256)


def test_a_half_loaded_model_is_broken_and_the_next_whole_push_heals_it(farm, store):
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    on(server, loading(first))
    whole = server.service.model.engine.publish

    def fail(params, version):
        whole(params, version)
        raise RuntimeError("out of memory")

    server.service.model.engine.publish = fail
    with pytest.raises(Broken, match=r"out of memory.*may be half loaded"):
        on(server, loading(second))
    # It has the new weights or the old; it must claim neither.
    assert serving(server) == (-1, "")
    server.service.model.engine.publish = whole
    on(server, loading(second))
    assert serving(server) == (2, second.sha256)


@pytest.mark.parametrize(("workers", "error"), [(1, PublishRefused), (2, Broken)])
def test_what_the_engine_took_back_is_refused(farm, store, monkeypatch, workers, error):
    """One of several workers took it back, and the others may have installed it: they differ."""
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    on(server, loading(first))
    whole, one = server.service.model.engine.publish, server.service.call

    def fail(params, version):
        if version == 2:
            raise RuntimeError("out of memory")
        whole(params, version)

    server.service.model.engine.publish = fail
    monkeypatch.setattr(server.service, "call", lambda *asked: one(*asked) * workers)
    with pytest.raises(error, match="out of memory"):
        on(server, loading(second))
    assert serving(server) == (1, first.sha256)


def test_workers_that_disagree_are_given_no_version(farm, store, monkeypatch):
    server, release = farm.start(), write(store, 1)
    on(server, loading(release))
    one = server.service.call

    def two(*asked):
        (answer,) = one(*asked)
        return [answer, {**answer, "version": 7, "sha256": "0" * 64}]

    monkeypatch.setattr(server.service, "call", two)
    assert serving(server) == (-1, "")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"transfer": None}, '--weight-transfer-config \'{"backend": "ogrpo"}\''),
        ({"transfer": "nccl"}, "--weight-transfer-config"),
        ({"protocol": 1}, r"another version of ogrpo \(its protocol is 1"),
    ],
)
def test_a_server_without_our_back_end_is_told_how_to_start(
    farm, store, monkeypatch, said, message
):
    server, release = farm.start(), write(store, 1)
    described = server.service.describe()
    monkeypatch.setattr(server.service, "describe", lambda: {**described, **said})
    with pytest.raises(PublishRefused, match=message):
        on(server, loading(release))


def test_a_server_that_says_whether_it_is_paused(farm):
    async def pause_and_resume(api, _):
        seen = [await api.is_paused()]
        await api.pause("wait")
        seen.append(await api.is_paused())
        await api.resume()
        return [*seen, await api.is_paused()]

    assert on(farm.start(), pause_and_resume) == [False, True, False]
