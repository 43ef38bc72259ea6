"""Blocks of keys against all scores at once: values, gradients, what is walked and what is held."""

import argparse
from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from ogrpo.kernels.attention.blocked import blocked_attention
from ogrpo.kernels.benchmark import attention_gradients, attention_inputs
from ogrpo.policy.attention import KeySegment, attend
from ogrpo.policy.decoder import keep_products
from ogrpo.policy.flops import Tile
from tests.kernels.attention import cases

pytestmark = pytest.mark.slow

TILES = [partial(blocked_attention, tile=Tile(*sizes)) for sizes in ((4, 3), (64, 128), (1, 1))]
SMALL = TILES[0]
ragged = st.tuples(
    st.lists(st.integers(1, cases.P), min_size=cases.N, max_size=cases.N),
    st.lists(st.integers(0, cases.T), min_size=cases.N * cases.G, max_size=cases.N * cases.G),
)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("kernel", TILES)
@settings(max_examples=25)
@given(lengths=ragged, seed=st.integers(0, 1 << 16))
def test_ragged_groups_have_the_oracles_values_and_gradients_but_for_rounding(
    kernel, layout, lengths, seed
):
    arrays = cases.draw(seed, lengths)
    exact = cases.in_float64(attend, layout, lengths, arrays)
    assert all(np.any(x != 0) == any(lengths[1]) for x in exact)
    assert np.max(cases.errors(cases.in_float64(kernel, layout, lengths, arrays), exact)) < 1e-13


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-6), ("bfloat16", 5e-3)])
def test_errors_are_what_the_docstring_says(dtype, most):
    sizes = {"group": 1, "prompt": 64, "heads": 4, "head_dim": 64, "kv_heads": 2}
    inputs = attention_inputs(argparse.Namespace(dtype=dtype, **sizes), 960)
    with jax.enable_x64(True):
        wide = [x.astype(jnp.float64) for x in inputs]
        exact = jax.tree.leaves(jax.jit(partial(attention_gradients, attend))(*wide))
    actual = jax.tree.leaves(jax.jit(partial(attention_gradients, blocked_attention))(*inputs))
    assert {x.dtype for x in actual} == {jnp.dtype(dtype)}
    for one, other in zip(actual, map(np.asarray, exact), strict=True):
        assert np.max(np.abs(np.asarray(one, np.float64) - other)) < most * np.max(np.abs(other))


def test_a_query_may_see_nothing_and_no_more_than_there_is():
    q, pk, pv, *_ = cases.draw(3, cases.FULL)
    seen = jnp.full((1, 1, cases.T), cases.P).at[..., 2].set(0)
    out, pull = jax.vjp(lambda *x: SMALL(x[0], [KeySegment(x[1], x[2], seen)]), q, pk, pv)
    assert np.all(out[:, :, 2] == 0)
    assert np.all(out[:, :, 3] != 0)
    alone = jnp.zeros_like(q).at[:, :, 2].set(1.0)
    assert all(np.all(x == 0) for x in pull(alone))
    outputs = [
        SMALL(q, [KeySegment(pk, pv, jnp.full((1, 1, cases.T), n))]) for n in (cases.P, cases.P + 5)
    ]
    np.testing.assert_array_equal(*outputs)


def test_blocks_that_nobody_sees_are_never_touched():
    lengths = ([4, 2, 3, 1], [5, 0, 3, 2, 1, 6] * 2)
    arrays = cases.draw(4, lengths)
    hidden = [x.at[..., 6:, :, :].set(jnp.nan) for x in arrays[1:5]]
    touched = [arrays[0], *hidden, arrays[5]]
    actual = cases.values_and_gradients(SMALL, "padded", lengths, touched)
    assert all(np.all(np.isfinite(x)) for x in actual)
    expected = cases.values_and_gradients(SMALL, "padded", lengths, arrays)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    plain = cases.values_and_gradients(attend, "padded", lengths, touched)
    assert np.any(np.isnan(plain[0]))


def test_memory_is_linear_in_the_completion():
    sizes = {"group": 2, "prompt": 8, "heads": 4, "head_dim": 8, "kv_heads": 2}

    def temporary(kernel, length):
        inputs = attention_inputs(argparse.Namespace(dtype="float32", **sizes), length)
        program = jax.jit(partial(attention_gradients, kernel)).lower(*inputs).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary(blocked_attention, 4096) < 2.2 * temporary(blocked_attention, 2048)
    assert temporary(attend, 1024) > 3.5 * temporary(attend, 512)
    assert temporary(blocked_attention, 1024) < 0.1 * temporary(attend, 1024)


def test_it_is_recomputed_inside_a_scan_but_for_what_is_kept_with_products():
    arrays, policies = cases.draw(6, cases.FULL), jax.checkpoint_policies
    expected = jax.jit(partial(cases.layers, attend, keep_products, "padded", cases.FULL))(arrays)
    for keep_fn in (keep_products, policies.nothing_saveable, policies.everything_saveable):
        actual = jax.jit(partial(cases.layers, SMALL, keep_fn, "padded", cases.FULL))(arrays)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), actual, expected)

    def loops(keep_fn):
        function = partial(cases.layers, SMALL, keep_fn, "padded", cases.FULL)
        return str(jax.make_jaxpr(function)(arrays)).count(" while[")

    assert loops(keep_products) < loops(policies.nothing_saveable)
