"""A packed batch gives what the padded one gives: log-probs, entropies and their gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogrpo.batch import Batch, take
from ogrpo.data.cutting import cut_by_tokens, pack_cut
from ogrpo.data.packing import Shape, arrange, pack
from ogrpo.learner.update import in_order
from ogrpo.policy import completion_log_probs_and_entropy
from ogrpo.policy.log_probs import token_log_probs
from ogrpo.policy.packing import packed_log_probs_and_entropy
from tests.data.test_packing import make
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow

padded_fn = jax.jit(completion_log_probs_and_entropy, static_argnums=1)
packed_fn = jax.jit(packed_log_probs_and_entropy, static_argnums=1)


def make_groups(n, g, p, t, *, seed, prompts=None, lengths=None) -> Batch:
    """Random tokens, noise on the padding; lengths are drawn, empty completions among them."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, p + 1, n) if prompts is None else prompts
    lengths = rng.integers(0, t + 1, (n, g)) if lengths is None else lengths
    return make(prompts, lengths, p, t, seed, vocab=11)


def packed(groups, *, microbatches=1, updated=None):
    """The batch in the order of its parts, what is in it, its packing and its shape."""
    updated = np.ones(len(groups.prompt_ids), bool) if updated is None else updated
    order, shape = arrange(groups, updated, microbatches=microbatches)
    groups, updated = take(groups, order), updated[order]
    rows = jax.tree.map(jnp.asarray, pack(groups, updated, shape))
    return groups, updated, rows, shape


def view(groups):
    return jax.tree.map(jnp.asarray, groups)


@partial(jax.jit, static_argnums=(0, 1))
def gradient(function, config, inputs, there, params):
    """The gradient of a random functional of log-probs and entropies where `there` is 1, and both."""

    def total(params):
        out = function(params, config, inputs, 0.7)
        weights = there[None] * jax.random.normal(jax.random.key(5), (2, *out.log_probs.shape))
        return jnp.sum(weights[0] * out.log_probs) + jnp.sum(weights[1] * out.entropy), out

    return jax.grad(total, has_aux=True)(params)


def check_packed(config, groups, updated, rows):
    """Packed is padded, and 0 in groups left out; returns the gradients, log-probs and entropies."""
    there, params = jnp.asarray(updated, jnp.float32)[:, None, None], make_params(config)
    grads, out = gradient(completion_log_probs_and_entropy, config, view(groups), there, params)
    packed_grads, packed_out = gradient(packed_log_probs_and_entropy, config, rows, there, params)
    check_close(packed_grads, grads)
    check_close(packed_out, jax.tree.map(lambda x: x * there, out))
    return packed_grads, packed_out


def check_close(actual, expected, *, atol=1e-5):
    """Equal to 1e-5: of the largest entry of its array, for a gradient."""
    for ours, theirs in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol * scale)


CASES = {
    "one token each": {"n": 2, "g": 2, "p": 1, "t": 1, "lengths": [[1, 0], [1, 1]]},
    "many first tokens": {"n": 2, "g": 40, "p": 3, "t": 2},
    "blocks": {"n": 2, "g": 2, "p": 4, "t": 40, "lengths": [[40, 17], [16, 33]]},
}


@pytest.mark.parametrize("name", CASES)
def test_packed_is_padded_in_values_and_gradients(name):
    check_packed(make_config(), *packed(make_groups(**CASES[name], seed=3))[:3])


def test_in_parts_with_groups_left_out():
    groups = make_groups(6, 2, 4, 5, seed=1)
    updated = np.array([True, False, True, True, False, True])
    inputs = packed(groups, microbatches=3, updated=updated)[:3]
    grads, _ = check_packed(make_config("Qwen3"), *inputs)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("name", ["many first tokens", "cut by tokens"])
def test_log_probs_of_recorded_tokens_are_those_of_the_whole_distribution(name):
    """Padded, packed, and cut by tokens within groups."""
    config = make_config()
    params, rng = make_params(config), np.random.default_rng(4)
    groups = make_groups(**CASES.get(name, CASES["blocks"]), seed=3)
    shape = (*groups.completion_ids.shape, config.vocab_size)
    whole = np.broadcast_to(np.arange(config.vocab_size, dtype=np.int32), shape)
    recorded = rng.integers(-1, config.vocab_size, (*shape[:-1], 3), np.int32)
    groups = groups._replace(top_ids=recorded)
    if name == "cut by tokens":
        cut = cut_by_tokens(groups, np.ones(len(groups.prompt_ids), bool), most=48)
        rows = jax.tree.map(jnp.asarray, pack_cut(groups, cut))
        actual = packed_fn(params, config, rows, 0.7, view(groups).top_ids)
        assert len(np.unique(cut.groups)) < cut.groups.size
        actual = in_order(actual, rows, len(groups.prompt_ids))
    else:
        groups, _, rows, _ = packed(groups)
        actual = packed_fn(params, config, rows, 0.7, view(groups).top_ids)
    every = padded_fn(params, config, view(groups._replace(top_ids=whole)), 0.7)
    present = groups.completion_mask[..., None] & (groups.top_ids >= 0)
    expected = np.take_along_axis(np.asarray(every.top_log_probs), groups.top_ids, axis=-1)
    for out in (actual, padded_fn(params, config, view(groups), 0.7)):
        top = np.where(present, out.top_log_probs, 0)
        np.testing.assert_allclose(top, np.where(present, expected, 0), atol=1e-5)
        np.testing.assert_allclose(out.log_probs, every.log_probs, atol=1e-5)
    mass = np.exp(every.top_log_probs).sum(axis=-1)
    np.testing.assert_allclose(mass[groups.completion_mask], 1, rtol=1e-5)


def test_parts_computed_together_are_the_same():
    config, groups = make_config(), make_groups(8, 2, 4, 20, seed=2)
    params, updated = make_params(config), np.ones(8, bool)
    order, shape = arrange(groups, updated, microbatches=4, together=2)
    assert shape.parts == 4
    rows = jax.tree.map(jnp.asarray, pack(take(groups, order), updated, shape))

    def total(together, params):
        how = {"together": together, "spread_fn": spread}
        out = packed_log_probs_and_entropy(params, config, rows, 0.7, **how)
        return jnp.sum(out.log_probs * weights) + jnp.sum(out.entropy), out

    seen = []

    def spread(x):
        seen.append(x.shape[0])
        return x

    weights = jax.random.normal(jax.random.key(5), (8, 2, 20))
    expected = jax.jit(jax.grad(partial(total, 1), has_aux=True))(params)
    assert set(seen) == {1}
    for together in (2, 4):
        seen.clear()
        check_close(jax.jit(jax.grad(partial(total, together), has_aux=True))(params), expected)
        assert set(seen) == {together}
    with pytest.raises(ValueError, match="4 parts cannot be computed 3 at a time"):
        total(3, params)


ROOMY = Shape(parts=2, predictors=30, others=22, groups=2, members=3, prompt=5, completion=6)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.lists(st.integers(0, 6), min_size=12, max_size=12).map(lambda x: np.reshape(x, (4, 3))),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 2**16),
)
def test_any_lengths_with_anything_on_the_rows_padding(prompts, lengths, updated, seed):
    groups = make_groups(4, 3, 5, 6, seed=seed, prompts=prompts, lengths=lengths)
    rows = pack(groups, np.array(updated), ROOMY)
    nowhere = rows.key_slots == rows.key_slots.max()  # real places index into the layout
    assert nowhere.any()
    noisy = rows._replace(
        token_ids=np.where(nowhere, np.int32(7), rows.token_ids),
        positions=np.where(nowhere, np.int32(9), rows.positions),
    )
    _, out = check_packed(make_config(), groups, updated, view(noisy))
    assert out.log_probs.dtype == out.entropy.dtype == jnp.float32


def test_accelerated_parts_see_tokens_and_no_padding():
    config = make_config()
    params = make_params(config)
    groups = make_groups(2, 2, 5, 32, seed=6, prompts=[5, 2], lengths=[[32, 3], [1, 9]])
    _, _, rows, shape = packed(groups)
    seen = []

    def log_probs_fn(hidden, embedding, token_ids, temperature):
        seen.append((hidden.shape[0], token_ids.shape[1]))
        return token_log_probs(hidden, embedding, token_ids, temperature)

    packed_fn = partial(packed_log_probs_and_entropy, log_probs_fn=log_probs_fn)
    jax.eval_shape(lambda: packed_fn(params, config, rows, 0.7))
    assert seen == [(4 + 44, 1)]  # first tokens; 31 + 2 + 0 + 8 predictors, on the bucket above 41
    assert (shape.row, shape.others) == (44 + 12, 12)  # 4 ends and 7 prompt tokens, on a bucket
