"""A value head against hidden states that are computed one completion at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.batch import VALUE_HEAD, tokens_only
from ogrpo.learner.state import init_state
from ogrpo.policy import completion_log_probs_and_entropy, init_params
from ogrpo.policy.config import tiny
from ogrpo.policy.log_probs import run_prompt
from ogrpo.policy.params import split_value_head, with_value_head

pytestmark = pytest.mark.slow

CONFIG = tiny(32)
P, T = 4, 3


@pytest.fixture(scope="module")
def given():
    params = with_value_head(init_params(CONFIG, jax.random.key(0)))
    head = params[VALUE_HEAD]
    weight = jax.random.normal(jax.random.key(1), head["weight"].shape)
    params = {**params, VALUE_HEAD: {"weight": weight, "bias": jnp.float32(0.25)}}
    rng = np.random.default_rng(2)
    lengths, sizes = np.array([[3], [4]]), np.array([[3, 2], [1, 3]])
    batch = tokens_only(
        prompt_ids=jnp.asarray(rng.integers(0, 32, (2, P)), jnp.int32),
        prompt_mask=jnp.asarray(np.arange(P) < lengths),
        completion_ids=jnp.asarray(rng.integers(0, 32, (2, 2, T)), jnp.int32),
        completion_mask=jnp.asarray(np.arange(T) < sizes[..., None]),
    )
    return params, batch


def test_values_are_of_the_states_before_the_tokens(given):
    params, batch = given
    trunk, head = split_value_head(params)
    found = completion_log_probs_and_entropy(params, CONFIG, batch, 1.0).values
    for n, g in np.ndindex(2, 2):
        prompt = np.asarray(batch.prompt_ids[n])[np.asarray(batch.prompt_mask[n])]
        own = np.asarray(batch.completion_ids[n, g])[np.asarray(batch.completion_mask[n, g])]
        row = jnp.asarray(np.concatenate([prompt, own]))[None]
        hidden, _ = run_prompt(trunk, CONFIG, row, jnp.ones(row.shape, bool))
        values = hidden[0] @ head["weight"] + head["bias"]
        states = values[len(prompt) - 1 : len(prompt) + len(own) - 1]
        np.testing.assert_allclose(found[n, g, : len(own)], states, rtol=1e-4, atol=1e-4)
        assert not np.any(found[n, g, len(own) :])


def test_a_head_moves_no_log_prob_and_begins_at_zero(given):
    params, batch = given
    trunk, _ = split_value_head(params)
    bare = completion_log_probs_and_entropy(trunk, CONFIG, batch, 1.0)
    beside = completion_log_probs_and_entropy(with_value_head(trunk), CONFIG, batch, 1.0)
    assert bare.values is None
    assert not np.any(beside.values)
    np.testing.assert_array_equal(bare.log_probs, beside.log_probs)


def test_nobody_but_the_trainer_sees_it(given):
    params, _ = given
    state = init_state(params, optax.identity())
    assert VALUE_HEAD in state.params
    assert set(state.whole()) == set(state.params) - {VALUE_HEAD} == set(state.whole(params))
