"""Every version against the oracle in float64: values, and gradients through both outputs."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from ogrpo.kernels.log_probs import choose, chunked_log_probs, reference_log_probs
from ogrpo.policy.log_probs import token_log_probs
from tests.kernels.log_probs.cases import A, Case, D, M, V, compiled, draw, errors

pytestmark = pytest.mark.slow

# Widths that divide the vocabulary, leave a rest, and exceed it, blocks of rows that divide them or
# not.
FAST = {
    "chunked by 13": partial(chunked_log_probs, width=13, kept_bytes=0, block=4),
    "chunked by 11, two kept": partial(
        chunked_log_probs, width=11, kept_bytes=2 * 4 * M * 11 + 1, block=3
    ),
    "chunked by 11, all kept": partial(chunked_log_probs, width=11),
    "chunked by 64": partial(chunked_log_probs, width=64),
}
VERSIONS = {**FAST, "rows in chunks": partial(token_log_probs, max_logits=3 * V)}
# Outputs, then gradients: those of bfloat16 inputs are bfloat16 themselves, and so is dL/dz.
# The temperature's is one sum over all of them, which cancel.
ATOL = {jnp.float32: [*[1e-6] * 4, 1e-5], jnp.bfloat16: [1e-6, 1e-6, 1e-2, 1e-2, 2e-2]}


@pytest.mark.parametrize("dtype", ATOL, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", VERSIONS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), log_t=st.floats(-2.5, 2.5), log_scale=st.floats(-3.0, 1.5))
def test_equals_float64(name, dtype, seed, log_t, log_scale):
    case = draw(seed, float(np.exp(log_t)), float(np.exp(log_scale)), dtype)
    scores = np.asarray(case.hidden, np.float64) @ np.asarray(case.embedding, np.float64).T
    rounding = 1 + np.max(np.abs(scores)) / float(case.temperature) / 8  # of float32 logits
    assert np.all(errors(VERSIONS[name], case) <= rounding * np.array(ATOL[dtype]))


def test_the_oracle_by_the_definition():
    case = draw(1, 0.5)
    out = reference_log_probs(*case[:4])
    z = np.asarray(case.hidden, np.float64) @ np.asarray(case.embedding, np.float64).T / 0.5
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    expected = np.log(p[np.arange(M)[:, None], np.asarray(case.token_ids)])
    np.testing.assert_allclose(out.log_probs, expected, atol=1e-5)
    np.testing.assert_allclose(out.entropy, -(p * np.log(p)).sum(-1), atol=1e-5)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_extreme_logits_stay_finite(name, scale):
    results = compiled(FAST[name])(draw(0, 0.7, scale))
    assert all(np.all(np.isfinite(x)) for x in results)
    np.testing.assert_allclose(results[1], 0, atol=1e-6)  # the entropy
    assert np.all(results[0] <= 0)
    assert np.any(results[0] == 0)  # some asked token is the one with all the mass


@pytest.mark.parametrize("name", FAST)
def test_a_masked_row_has_no_gradient(name):
    h, e, ids, t, g, k = draw(0)
    quiet = Case(h, e, ids, t, g.at[2].set(0.0), k.at[2].set(0.0))
    assert np.all(compiled(FAST[name])(quiet)[2][2] == 0)


@pytest.mark.parametrize("name", FAST)
def test_no_rows(name):
    h, e, ids, t, g, k = draw(0)
    assert np.all(compiled(FAST[name])(Case(h[:0], e, ids[:0], t, g[:0], k[:0]))[3] == 0)


@pytest.mark.parametrize("name", FAST)
def test_a_token_outside_of_the_vocabulary_has_no_probability(name):
    ids = jnp.full((M, A), -1).at[0, 0].set(V).at[1, 1].set(V + 7).at[2, 2].set(5)
    log_probs, *rest = compiled(FAST[name])(draw(0)._replace(token_ids=ids))
    assert np.argwhere(np.isfinite(log_probs)).tolist() == [[2, 2]]
    assert all(np.all(np.isfinite(x)) for x in rest)


def test_a_slice_is_computed_for_so_many_rows_at_a_time():
    whole, blocks = (
        partial(chunked_log_probs, width=13, kept_bytes=0, block=block) for block in (33, 11)
    )
    ids = jnp.zeros((33, A), jnp.int32)
    program = {
        kernel: str(jax.make_jaxpr(kernel)(jnp.zeros((33, D)), jnp.zeros((V, D)), ids, 1.0))
        for kernel in (whole, blocks)
    }
    assert "f32[33,13]" in program[whole]
    assert "f32[33,13]" not in program[blocks]
    assert "f32[11,13]" in program[blocks]


def test_memory_is_bounded_by_the_width_or_the_chunk():
    hidden, table = jnp.zeros((512, 8)), jnp.zeros((4096, 8))
    ids = jnp.zeros((512, 1), jnp.int32)

    def temporary_bytes(kernel):
        def total(hidden, table):
            return jnp.sum(kernel(hidden, table, ids, jnp.float32(1)).log_probs)

        program = jax.jit(jax.grad(total, (0, 1))).lower(hidden, table).compile()
        return program.memory_analysis().temp_size_in_bytes

    whole = temporary_bytes(reference_log_probs)
    assert whole >= 4 * 512 * 4096
    assert temporary_bytes(partial(token_log_probs, max_logits=1 << 16)) < whole / 4
    bare = temporary_bytes(partial(chunked_log_probs, width=64, kept_bytes=0))
    assert bare < whole / 10
    kept = partial(chunked_log_probs, width=64, kept_bytes=1 << 20)
    assert bare + (1 << 19) < temporary_bytes(kept) < bare + (1 << 20) + whole / 10


def test_auto_goes_by_the_vocabulary():
    assert [choose("auto", size) for size in (64, 151_936)] == ["reference", "chunked"]
