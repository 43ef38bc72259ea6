"""Weights of 8 bits per output channel: the grid, the error, and what is left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.policy.params import int8_weights, round_to_int8
from ogrpo.serving.bridge import embedded_engine
from tests.policy.tiny import FAMILIES, make_config, make_params


def test_a_row_has_at_most_255_levels_and_half_a_step_of_error():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, 7, 500)).astype(np.float32) * np.geomspace(1e-3, 1e2, 7)[:, None]
    weight[0, 3] = 0.0
    found = np.asarray(round_to_int8(jnp.asarray(weight)))
    scale = np.abs(weight).max(-1, keepdims=True) / 127
    assert (np.abs(found - weight) <= scale * 0.5001).all()
    levels = found / np.where(scale > 0, scale, 1)
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
    assert np.abs(levels).max() == pytest.approx(127)
    np.testing.assert_array_equal(found[0, 3], 0.0)
    assert round_to_int8(jnp.asarray(weight, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_are_rounded_and_norms_and_biases_stay(family):
    params = make_params(make_config(family))
    before = jax.tree_util.tree_leaves_with_path(params)
    after = jax.tree.leaves(int8_weights(params))
    for (path, leaf), rounded in zip(before, after, strict=True):
        name = jax.tree_util.keystr(path)
        kept = "norm" in name or "bias" in name
        assert bool((leaf == rounded).all()) == kept, name


def test_the_embedded_engine_takes_them_only_where_it_is_told():
    config = make_config()
    params = make_params(config)
    for quantize, same in (("none", True), ("int8", False)):
        engine = embedded_engine(config, eos_id=0, batch_size=1, prompt_length=4, quantize=quantize)
        engine.publish(params, 0)
        served = engine._weights.params["layers"]["mlp"]["up_proj"]["weight"]
        assert bool((served == params["layers"]["mlp"]["up_proj"]["weight"]).all()) == same
