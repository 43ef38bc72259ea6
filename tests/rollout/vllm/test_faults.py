"""Refusals of a server, and set-ups under which log-probs would be wrong.

Over the in-repo server, through the engine's own interface alone. What befalls servers is in
test_schedules, in virtual time, and in tests/server, with vLLM.
"""

import dataclasses

import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import PublishRefused, Refused, errors
from tests.rollout.vllm import contract, world

pytestmark = pytest.mark.slow

CONFIG = world.decoder()
FIRST, SECOND = (world.make_params(CONFIG, seed) for seed in (0, 1))
MANY = world.PROMPTS * 6


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch):
    monkeypatch.setattr(errors, "FIRST_REST", 0.01)


@pytest.fixture
def server(farm):
    return farm.start()


def started(*urls, params=FIRST, **options):
    """An engine that has published version 1."""
    engine = contract.connect(urls, CONFIG, **options)
    engine.publish(params, 1)
    return engine


def check(engine, params=FIRST, version=1, prompts=MANY):
    """Groups of a version, each exact."""
    groups = engine.generate(prompts, contract.SAMPLING, 1)
    contract.check_groups(groups, prompts, contract.SAMPLING)
    assert {c.policy_version for g in groups for c in g.completions} == {version}
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
    return groups


def test_what_one_server_refuses_none_serves(farm):
    a, b = farm.start(), farm.start()
    with started(a.url, b.url) as engine:
        whole = b.service.model
        b.service.model = dataclasses.replace(whole, shapes={})
        with pytest.raises(PublishRefused, match="it goes on serving version 1"):
            engine.publish(SECOND, 2)
        b.service.model = whole
        assert engine.version == 1
        for _ in range(3):
            check(engine)
        engine.publish(SECOND, 2)
        check(engine, SECOND, 2)


def test_what_would_make_log_probs_wrong_is_refused(farm, server):
    with started(farm.start(raw_log_probs=True).url) as engine:
        assert engine.capabilities[0].log_probs == "raw"
        check(engine)
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            engine.generate(MANY, Sampling(0.7, 12, 4), 1)
    with started(server.url) as engine, pytest.raises(Refused, match="raise its --max-model-len"):
        engine.generate(MANY, Sampling(1.0, world.POSITIONS, 4), 1)
    with pytest.raises(Refused, match="serves a vocabulary of 16, the trainer's model has 17"):
        contract.connect([server.url], dataclasses.replace(CONFIG, vocab_size=17))
    with pytest.raises(Refused, match="start it with a larger --max-model-len"):
        contract.connect([server.url], CONFIG, max_length=world.POSITIONS + 1)
    with pytest.raises(Refused, match="'keep'"):
        contract.connect([farm.start(native=False).url], CONFIG, in_flight="keep")
