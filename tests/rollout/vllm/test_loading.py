"""A release on its way into a paused server, by vLLM's weight update: who is told what, what it serves."""

import re

import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Broken, Refused
from ogrpo.rollout.weights import Store
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.updates import loading, on, serving, write

CONFIG = world.decoder()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "releases", keep=8)


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


def test_workers_that_disagree_are_given_no_version(farm, store, monkeypatch):
    server, release = farm.start(), write(store, 1)
    on(server.url, loading(release))
    one = server.service.call

    def two(*arguments):
        (answer,) = one(*arguments)
        return [answer, {**answer, "version": 7, "sha256": "0" * 64}]

    monkeypatch.setattr(server.service, "call", two)
    assert serving(server.url)[1] == ""


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"transfer": None}, '--weight-transfer-config \'{"backend": "ogrpo"}\''),
        ({"transfer": "another"}, "--weight-transfer-config"),
        ({"protocol": 1}, "has the worker extension of another version of ogrpo"),
        ({"context": 59}, "start it with a larger --max-model-len"),
        ({"vocab_size": 17}, "serves a vocabulary of 17, the trainer's model has 16"),
        ({"quantization": "fp8"}, "serves fp8 weights, which cannot be replaced"),
    ],
)
def test_a_server_that_does_not_fit_is_told_how_to_start(farm, monkeypatch, said, message):
    server = farm.start()
    service = server.service
    described = {**service.describe(), "context": 64, **said}
    cards = [{"id": service.name, "max_model_len": described.pop("context")}]
    monkeypatch.setattr(service, "describe", lambda: described)
    monkeypatch.setattr(service, "cards", lambda: cards)
    with pytest.raises(Refused, match=re.escape(message)):
        on(server.url, lambda *_: None)


@pytest.fixture
def engine(farm):
    with contract.connect([farm.start().url], CONFIG) as engine:
        yield engine


@pytest.mark.parametrize("native", [True, False])
def test_log_probs_are_the_trainers_at_every_temperature(farm, native):
    with contract.connect([farm.start(native=native).url], CONFIG) as engine:
        assert [capability.native for capability in engine.capabilities] == [native]
        contract.check_log_probs(engine, CONFIG, (1.0, 0.7))
        with pytest.raises(Refused, match="raise its --max-model-len"):
            engine.generate(world.PROMPTS, Sampling(1.0, world.POSITIONS, 4), 1)


@pytest.mark.parametrize(("tied", "transport"), [(True, "url"), (False, "folder")])
def test_pushes_are_proven_one_after_the_other(farm, tied, transport):
    config = world.decoder(tied=tied)
    with contract.connect([farm.start(tied=tied).url], config, transport=transport) as engine:
        contract.check_pushes(engine, config)
        sent = engine.metrics()["sync/bytes_sent"]
        assert (sent > 0) == (transport == "url")


def test_completions_are_distributed_as_the_policy(engine):
    contract.check_distribution(engine, CONFIG)


@pytest.mark.parametrize("kind", contract.GARBAGE)
def test_garbage_is_refused_and_the_live_model_stays(engine, kind, monkeypatch):
    contract.check_garbage(engine, CONFIG, contract.GARBAGE[kind], monkeypatch)
