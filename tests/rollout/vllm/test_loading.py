"""A release on its way into a paused server, by vLLM's weight update: who is told what."""

import re

import pytest

from ogrpo.rollout.vllm import Broken, PublishRefused, Refused, Unavailable
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.weights import Store, WeightShare
from tests.rollout.vllm import updates
from tests.rollout.vllm.updates import loading, on, serving, write


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "releases", keep=8)


def test_a_release_is_loaded_and_its_bytes_are_counted(farm, store):
    server, release = farm.start(), write(store, 1)
    assert on(server.url, loading(release)) == 0
    assert serving(server.url) == (1, release.sha256)
    share, second = WeightShare(store.folder), write(store, 2)
    try:
        assert on(server.url, loading(second, share)) == second.bytes
    finally:
        share.close()
    assert serving(server.url) == (2, second.sha256)


def test_an_update_that_a_dead_trainer_left_open_is_closed(farm, store):
    updates.check_a_dead_trainers_update(farm.start().url, store)


def test_a_second_update_in_the_middle_of_ours_changes_nothing(farm, store, monkeypatch):
    updates.check_a_foreign_start(farm.start().url, store, monkeypatch)


def test_another_trainer_that_stages_in_between_is_noticed(farm, store, monkeypatch):
    server, first, second, foreign = farm.start(), *(write(store, n) for n in (1, 2, 3))
    update = ServerApi.update_weights

    async def overtaken(api, body, *, seconds):
        if body.get("install"):
            other = {"version": 3, "manifest_sha256": foreign.manifest_sha256}
            await update(api, {**other, "path": str(foreign.folder)}, seconds=seconds)
        await update(api, body, seconds=seconds)

    on(server.url, loading(first))
    monkeypatch.setattr(ServerApi, "update_weights", overtaken)
    with pytest.raises(PublishRefused, match=r"not staged here.*goes on serving version 1"):
        on(server.url, loading(second))
    assert serving(server.url) == (1, first.sha256)


def test_what_is_out_of_reach_is_worth_another_attempt(farm, store):
    server, first, gone = farm.start(), write(store, 1), write(store, 2)
    (gone.folder / "model.safetensors").unlink()
    on(server.url, loading(first))
    with pytest.raises(Unavailable, match="must see the same path"):
        on(server.url, loading(gone))
    assert serving(server.url) == (1, first.sha256)


def test_a_half_loaded_model_is_broken_and_the_next_whole_push_heals_it(farm, store):
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    on(server.url, loading(first))
    whole = server.service.model.engine.publish

    def fail(params, version):
        whole(params, version)
        raise RuntimeError("out of memory")

    server.service.model.engine.publish = fail
    with pytest.raises(Broken, match=r"out of memory.*may be half loaded"):
        on(server.url, loading(second))
    # It has the new weights or the old; it must claim neither.
    assert serving(server.url)[1] == ""
    server.service.model.engine.publish = whole
    on(server.url, loading(second))
    assert serving(server.url) == (2, second.sha256)


@pytest.mark.parametrize(("workers", "error"), [(1, PublishRefused), (2, Broken)])
def test_what_the_engine_took_back_is_refused(farm, store, monkeypatch, workers, error):
    """One of several workers took it back, and the others may have installed it: they differ."""
    server, first, second = farm.start(), write(store, 1), write(store, 2)
    on(server.url, loading(first))
    whole, one = server.service.model.engine.publish, server.service.call

    def fail(params, version):
        if version == 2:
            raise RuntimeError("out of memory")
        whole(params, version)

    server.service.model.engine.publish = fail
    monkeypatch.setattr(server.service, "call", lambda *asked: one(*asked) * workers)
    with pytest.raises(error, match="out of memory"):
        on(server.url, loading(second))
    assert serving(server.url) == (1, first.sha256)


def test_workers_that_disagree_are_given_no_version(farm, store, monkeypatch):
    server, release = farm.start(), write(store, 1)
    on(server.url, loading(release))
    one = server.service.call

    def two(*asked):
        (answer,) = one(*asked)
        return [answer, {**answer, "version": 7, "sha256": "0" * 64}]

    monkeypatch.setattr(server.service, "call", two)
    assert serving(server.url)[1] == ""


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"transfer": None}, '--weight-transfer-config \'{"backend": "ogrpo"}\''),
        ({"transfer": "nccl"}, "--weight-transfer-config"),
        ({"protocol": 1}, "has the worker extension of another version of ogrpo"),
    ],
)
def test_a_server_without_our_back_end_is_told_how_to_start(farm, monkeypatch, said, message):
    server = farm.start()
    described = server.service.describe()
    monkeypatch.setattr(server.service, "describe", lambda: {**described, **said})
    with pytest.raises(Refused, match=re.escape(message)):
        on(server.url, lambda *_: None)
