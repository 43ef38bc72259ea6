from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import VALUE_HEAD
from ogrpo.policy import (
    completion_log_probs,
    completion_log_probs_and_entropy,
    flat_log_probs,
    init_params,
)
from ogrpo.policy.attention import attend
from ogrpo.policy.log_probs import run_prompt, token_log_probs
from ogrpo.policy.params import split_value_head, with_value_head
from tests.policy.tiny import FAMILIES, make_case, make_config, ragged_batch

grouped = jax.jit(completion_log_probs, static_argnums=1)
jit_both = jax.jit(completion_log_probs_and_entropy, static_argnums=1)
jit_flat = jax.jit(flat_log_probs, static_argnums=1)


def flat(params, config, batch, temperature):
    """The same log-probs by the flat path: each completion behind its own copy of the prompt."""
    n, g, t = batch.completion_ids.shape

    def rows(prompts, completions):
        copies = np.repeat(np.asarray(prompts)[:, None], g, axis=1)
        return np.concatenate([copies, completions], axis=-1).reshape(n * g, -1)

    ids, mask = (
        rows(batch.prompt_ids, batch.completion_ids),
        rows(batch.prompt_mask, batch.completion_mask),
    )
    order = np.argsort(~mask, axis=-1, kind="stable")  # nothing stands between the two
    ids, mask = (jnp.asarray(np.take_along_axis(x, order, axis=-1)) for x in (ids, mask))
    log_probs = jit_flat(params, config, ids, mask, temperature).reshape(n, g, -1)
    lengths = np.asarray(batch.prompt_mask).sum(axis=-1)
    columns = np.broadcast_to(lengths[:, None, None] - 1 + np.arange(t), (n, g, t))
    return jnp.take_along_axis(log_probs, columns, axis=-1)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        (FAMILIES[0], {}),
        *(pytest.param(name, {}, marks=pytest.mark.slow) for name in FAMILIES[1:]),
        # Their first tokens are asked for once a prompt.
        pytest.param(FAMILIES[0], {"g": 34, "t": 2}, marks=pytest.mark.slow),
    ],
)
def test_grouped_is_flat_in_values_and_gradients(family, sizes):
    config, params, _ = make_case(family)
    batch = ragged_batch(config, **sizes)
    weights = jax.random.normal(jax.random.key(5), batch.completion_ids.shape)

    def weighted(log_probs_fn, params):
        log_probs = log_probs_fn(params, config, batch, 0.7)
        return jnp.sum(weights * log_probs), log_probs

    results = [
        jax.jit(jax.grad(partial(weighted, fn), has_aux=True))(params)
        for fn in (completion_log_probs, flat)
    ]
    (grouped_grads, grouped_values), (flat_grads, flat_values) = results
    np.testing.assert_allclose(grouped_values, flat_values, rtol=0, atol=1e-5)
    atol = 3e-5 if sizes else 1e-5  # of sums over as many more completions
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=atol)
    jax.tree.map(close, grouped_grads, flat_grads)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(grouped_grads))


def test_entropy_is_that_of_the_whole_distribution():
    config, params, batch = make_case()
    seen, ids = np.asarray(batch.completion_mask), np.asarray(batch.completion_ids)
    every = np.broadcast_to(np.arange(config.vocab_size), (*ids.shape, config.vocab_size))
    out = jit_both(params, config, batch._replace(top_ids=jnp.asarray(every, jnp.int32)), 0.7)
    p, log_p = np.exp(out.top_log_probs)[seen], np.asarray(out.top_log_probs)[seen]
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(np.asarray(out.entropy)[seen], -(p * log_p).sum(-1), atol=1e-5)
    drawn = np.take_along_axis(log_p, ids[seen][:, None], axis=-1)[:, 0]
    np.testing.assert_allclose(np.asarray(out.log_probs)[seen], drawn, atol=1e-5)


def test_padding_gives_zero_and_takes_no_gradient():
    config, params, batch = make_case()
    seen = np.asarray(batch.completion_mask)
    out = jit_both(params, config, batch, 1.0)
    assert np.all(np.asarray(out.log_probs)[~seen] == 0)
    assert np.all(np.asarray(out.entropy)[~seen] == 0)
    assert np.all(np.asarray(out.log_probs)[seen] < 0)
    on_padding = jnp.asarray(~seen, jnp.float32)
    gradient = jax.grad(lambda p: jnp.sum(on_padding * grouped(p, config, batch, 1.0)))(params)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))


def test_accelerated_parts_are_passed_in():
    config, params, batch = make_case()
    shapes = []

    def attention_fn(queries, segments):
        shapes.append((queries.shape, [segment.keys.shape for segment in segments]))
        return attend(queries, segments)

    def log_probs_fn(hidden, embedding, token_ids, temperature):
        shapes.append((hidden.shape, token_ids.shape))
        return token_log_probs(hidden, embedding, token_ids, temperature, max_logits=11)

    out = completion_log_probs(
        params, config, batch, 1.0, attention_fn=attention_fn, log_probs_fn=log_probs_fn
    )
    np.testing.assert_allclose(out, grouped(params, config, batch, 1.0), atol=1e-5)
    # The prompt's keys are never repeated for its four completions.
    assert ((3, 4, 4, 4, 4), [(3, 5, 2, 4), (3, 4, 4, 2, 4)]) in shapes
    assert ((3, 1, 5, 4, 4), [(3, 5, 2, 4)]) in shapes
    assert shapes[-1] == ((48, 16), (48, 1))


@pytest.mark.parametrize(
    "change",
    [{"prompt_ids": jnp.zeros((3, 6), jnp.int32)}, {"completion_mask": jnp.ones((3, 4, 3), bool)}],
)
def test_shapes_that_disagree_are_refused(change):
    config, params, batch = make_case()
    with pytest.raises(ValueError, match=r"prompts \[N, P\] and completions \[N, G, T\]"):
        completion_log_probs(params, config, batch._replace(**change), 1.0)


@pytest.mark.slow
def test_values_are_of_the_states_before_the_tokens_and_move_no_log_prob():
    config = make_config(vocab_size=32)
    params = with_value_head(init_params(config, jax.random.key(0)))
    weight = jax.random.normal(jax.random.key(1), params[VALUE_HEAD]["weight"].shape)
    params = {**params, VALUE_HEAD: {"weight": weight, "bias": jnp.float32(0.25)}}
    batch = ragged_batch(config, n=2, g=2)
    trunk, head = split_value_head(params)
    bare, out = (completion_log_probs_and_entropy(p, config, batch, 1.0) for p in (trunk, params))
    assert bare.values is None
    np.testing.assert_array_equal(bare.log_probs, out.log_probs)
    for n, g in np.ndindex(2, 2):
        prompt = np.asarray(batch.prompt_ids[n])[np.asarray(batch.prompt_mask[n])]
        completion = np.asarray(batch.completion_ids[n, g])[np.asarray(batch.completion_mask[n, g])]
        row = np.resize(np.concatenate([prompt, completion]), (1, 9))  # none sees what follows it
        hidden, _ = run_prompt(trunk, config, row, jnp.ones(row.shape, bool))
        values = hidden[0] @ head["weight"] + head["bias"]
        states = values[len(prompt) - 1 : len(prompt) + len(completion) - 1]
        np.testing.assert_allclose(
            out.values[n, g, : len(completion)], states, rtol=1e-4, atol=1e-4
        )
        assert not np.any(out.values[n, g, len(completion) :])
