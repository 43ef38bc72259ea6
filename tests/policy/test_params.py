"""A value head against hidden states computed one by one, and weights of 8 bits per channel."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.batch import VALUE_HEAD
from ogrpo.learner.state import init_state
from ogrpo.policy import completion_log_probs_and_entropy, init_params
from ogrpo.policy.log_probs import run_prompt
from ogrpo.policy.params import int8_weights, round_to_int8, split_value_head, with_value_head
from ogrpo.serving.bridge import embedded_engine
from tests.policy.tiny import FAMILIES, make_config, make_params, ragged_batch

CONFIG = make_config(vocab_size=32)


@pytest.fixture(scope="module")
def valued():
    params = with_value_head(init_params(CONFIG, jax.random.key(0)))
    head = params[VALUE_HEAD]
    weight = jax.random.normal(jax.random.key(1), head["weight"].shape)
    params = {**params, VALUE_HEAD: {"weight": weight, "bias": jnp.float32(0.25)}}
    return params, ragged_batch(CONFIG, n=2, g=2)


@pytest.mark.slow
def test_values_are_of_the_states_before_the_tokens(valued):
    params, batch = valued
    trunk, head = split_value_head(params)
    values_out = completion_log_probs_and_entropy(params, CONFIG, batch, 1.0).values
    for n, g in np.ndindex(2, 2):
        prompt = np.asarray(batch.prompt_ids[n])[np.asarray(batch.prompt_mask[n])]
        completion = np.asarray(batch.completion_ids[n, g])[np.asarray(batch.completion_mask[n, g])]
        row = jnp.asarray(np.concatenate([prompt, completion]))[None]
        hidden, _ = run_prompt(trunk, CONFIG, row, jnp.ones(row.shape, bool))
        values = hidden[0] @ head["weight"] + head["bias"]
        states = values[len(prompt) - 1 : len(prompt) + len(completion) - 1]
        np.testing.assert_allclose(
            values_out[n, g, : len(completion)], states, rtol=1e-4, atol=1e-4
        )
        assert not np.any(values_out[n, g, len(completion) :])


@pytest.mark.slow
def test_a_head_moves_no_log_prob_and_begins_at_zero(valued):
    params, batch = valued
    trunk, _ = split_value_head(params)
    bare = completion_log_probs_and_entropy(trunk, CONFIG, batch, 1.0)
    beside = completion_log_probs_and_entropy(with_value_head(trunk), CONFIG, batch, 1.0)
    assert bare.values is None
    assert not np.any(beside.values)
    np.testing.assert_array_equal(bare.log_probs, beside.log_probs)


def test_nobody_but_the_trainer_sees_it(valued):
    params, _ = valued
    state = init_state(params, optax.identity())
    assert VALUE_HEAD in state.params
    assert set(state.whole()) == set(state.params) - {VALUE_HEAD} == set(state.whole(params))


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


def test_the_embedded_engine_takes_them_only_where_it_is_told():
    config = make_config()
    params = make_params(config)
    for quantize, same in (("none", True), ("int8", False)):
        engine = embedded_engine(config, eos_id=0, batch_size=1, prompt_length=4, quantize=quantize)
        served = engine._prepare_fn(params)["layers"]["mlp"]["up_proj"]["weight"]
        assert bool((served == params["layers"]["mlp"]["up_proj"]["weight"]).all()) == same
