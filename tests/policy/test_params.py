"""A value head against hidden states computed one by one, and weights of 8 bits per channel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import VALUE_HEAD
from ogrpo.policy import completion_log_probs_and_entropy, init_params
from ogrpo.policy.log_probs import run_prompt
from ogrpo.policy.params import int8_weights, round_to_int8, split_value_head, with_value_head
from tests.policy.tiny import FAMILIES, make_config, make_params, ragged_batch

CONFIG = make_config(vocab_size=32)


@pytest.mark.slow
def test_values_are_of_the_states_before_the_tokens_and_move_no_log_prob():
    params = with_value_head(init_params(CONFIG, jax.random.key(0)))
    weight = jax.random.normal(jax.random.key(1), params[VALUE_HEAD]["weight"].shape)
    params = {**params, VALUE_HEAD: {"weight": weight, "bias": jnp.float32(0.25)}}
    batch = ragged_batch(CONFIG, n=2, g=2)
    trunk, head = split_value_head(params)
    bare, out = (completion_log_probs_and_entropy(p, CONFIG, batch, 1.0) for p in (trunk, params))
    assert bare.values is None
    np.testing.assert_array_equal(bare.log_probs, out.log_probs)
    for n, g in np.ndindex(2, 2):
        prompt = np.asarray(batch.prompt_ids[n])[np.asarray(batch.prompt_mask[n])]
        completion = np.asarray(batch.completion_ids[n, g])[np.asarray(batch.completion_mask[n, g])]
        row = np.resize(np.concatenate([prompt, completion]), (1, 9))  # none sees what follows it
        hidden, _ = run_prompt(trunk, CONFIG, row, jnp.ones(row.shape, bool))
        values = hidden[0] @ head["weight"] + head["bias"]
        states = values[len(prompt) - 1 : len(prompt) + len(completion) - 1]
        np.testing.assert_allclose(
            out.values[n, g, : len(completion)], states, rtol=1e-4, atol=1e-4
        )
        assert not np.any(out.values[n, g, len(completion) :])


def test_a_row_has_at_most_255_levels_and_half_a_step_of_error():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, 7, 500)).astype(np.float32) * np.geomspace(1e-3, 1e2, 7)[:, None]
    weight[0, 3] = 0.0
    rounded = np.asarray(round_to_int8(jnp.asarray(weight)))
    scale = np.abs(weight).max(-1, keepdims=True) / 127
    assert (np.abs(rounded - weight) <= scale * 0.5001).all()
    levels = rounded / np.where(scale > 0, scale, 1)
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
    assert np.abs(levels).max() == pytest.approx(127)
    np.testing.assert_array_equal(rounded[0, 3], 0.0)
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
