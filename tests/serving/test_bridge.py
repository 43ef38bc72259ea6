"""The embedded engine's layouts for one CPU draw what the plain sampler draws."""

import jax
import numpy as np
import pytest

from ogrpo.learner.state import join
from ogrpo.policy import lora
from ogrpo.protocol import Sampling
from ogrpo.serving import bridge
from tests.policy.test_lora import adapters
from tests.policy.tiny import make_case, make_config, make_params, run_sampler


@pytest.mark.parametrize(("large", "unstacked"), [(1 << 22, False), (1, True)])
def test_the_embedded_engine_draws_what_the_sampler_draws(monkeypatch, large, unstacked):
    monkeypatch.setattr(bridge, "_LARGE", large)
    monkeypatch.setattr(bridge, "_LEAST_READ", 4)
    config, params, batch = make_case()
    engine = bridge.embedded_engine(config, eos_id=3, batch_size=3, prompt_length=5)
    engine.publish(params, 7)
    assert isinstance(engine._prepare_fn(params)["layers"], list) == unstacked
    rows = zip(np.asarray(batch.prompt_ids), np.asarray(batch.prompt_mask), strict=True)
    sampling = Sampling(temperature=0.7, max_tokens=40, group_size=4)
    groups = engine.generate([ids[mask] for ids, mask in rows], sampling, seed=5)
    plain = run_sampler(config, params, batch, seed=5, max_tokens=40, eos_id=3)
    lengths = np.asarray(plain.mask.sum(-1))
    for (n, g), length in np.ndenumerate(lengths):
        completion = groups[n].completions[g]
        np.testing.assert_array_equal(completion.token_ids, plain.token_ids[n, g, :length])
        expected = plain.log_probs[n, g, :length]
        np.testing.assert_allclose(completion.log_probs, expected, rtol=0, atol=1e-5)
        assert (completion.finish_reason == "stop") == bool(plain.finished[n, g])


def test_engines_and_servers_get_merged_adapters():
    config = make_config()
    params = make_params(config)
    whole = join(*adapters(params, noise=0.1))
    merged = lora.merge(whole)
    named = bridge.named_tensors(config, whole)
    for name, tensor in bridge.named_tensors(config, merged).items():
        np.testing.assert_array_equal(named.pop(name), tensor)
    assert not named
    engine = bridge.embedded_engine(config, eos_id=3, batch_size=1, prompt_length=2)
    jax.tree.map(np.testing.assert_array_equal, engine._prepare_fn(whole), merged)
    one, other = (tree["layers"]["mlp"]["up_proj"]["weight"] for tree in (merged, params))
    assert np.any(one != other)
