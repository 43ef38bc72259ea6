"""The untied policy on a server with vLLM's own log-probs; this module's server ends with it."""

import pytest

from ogrpo.rollout.protocol import Sampling
from ogrpo.rollout.vllm import Refused
from tests.rollout.vllm import contract, world

CONFIG = world.decoder(tied=False)


def test_raw_log_probs_serve_at_temperature_one_and_are_refused_elsewhere(alone):
    params = world.make_params(CONFIG, 0)
    with contract.connect([alone.url], CONFIG) as engine:
        assert engine.capabilities[0].log_probs == "raw"
        engine.publish(params, 1)
        contract.check_log_probs(engine, CONFIG, params, (1.0,))
        contract.check_greedy(engine, CONFIG, params)
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            engine.generate(world.PROMPTS, Sampling(0.7, 12, 4), 1)


@pytest.mark.parametrize("transport", ["folder", "url"])
def test_pushes_are_proven_one_after_the_other(alone, transport):
    with contract.connect([alone.url], CONFIG, transport=transport) as engine:
        contract.check_pushes(engine, CONFIG)


def test_a_missing_head_is_refused(alone, monkeypatch):
    params = world.make_params(CONFIG, 0)
    monkeypatch.setitem(contract.GARBAGE, "head", "lacks 1 tensors: lm_head.weight")
    monkeypatch.setattr(
        contract,
        "corrupted",
        lambda _, tensors: {k: v for k, v in tensors.items() if k != "lm_head.weight"},
    )
    with contract.connect([alone.url], CONFIG) as engine:
        contract.check_garbage(engine, CONFIG, params, "head", monkeypatch)
