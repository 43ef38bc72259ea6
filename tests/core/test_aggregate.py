"""Totals: what is summed, what is counted, and that parts add up to the whole."""

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import aggregate
from ogrpo.core.aggregate import Total, mean
from ogrpo.core.algorithms import REDUCTIONS

VALUES = jnp.arange(1.0, 13.0).reshape(2, 2, 3)
MASK = jnp.array([[[1, 1, 1], [1, 1, 0]], [[1, 0, 0], [0, 0, 0]]], bool)
CALLS = {name: {"length": 4.0} if name == "fixed_length" else {} for name in REDUCTIONS}
# Each reduction by its total and its mean, and what it sums and counts.
CASES = {
    "token": (aggregate.token_total, aggregate.token_mean, (1 + 2 + 3 + 4 + 5 + 7, 6)),
    "sequence": (aggregate.sequence_total, aggregate.sequence_mean, (2 + 4.5 + 7, 3)),
    "sequence_sum": (aggregate.sequence_sum_total, aggregate.sequence_sum_mean, (22, 3)),
    "fixed_length": (aggregate.fixed_length_total, aggregate.fixed_length_mean, (22 / 4, 3)),
    "group": (aggregate.group_total, aggregate.group_mean, (15 / 5 + 7, 2)),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_totals_by_hand_and_nothing_counted_is_nothing(name):
    total_fn, mean_fn, expected = CASES[name]
    assert total_fn is REDUCTIONS[name]
    total = total_fn(VALUES, MASK, **CALLS[name])
    np.testing.assert_allclose(total, expected)
    assert float(mean(total)) == pytest.approx(expected[0] / expected[1])
    assert mean_fn(VALUES, MASK, **CALLS[name]) == mean(total)
    nothing = total_fn(VALUES * jnp.inf, MASK & False, **CALLS[name])
    assert nothing == Total(jnp.float32(0), jnp.float32(0))
    assert mean(nothing) == 0


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_dropped_tokens_can_stay_in_the_denominator(name):
    kept = MASK.at[0, 0, 2].set(False).at[1, 0, 0].set(False)
    out = REDUCTIONS[name](VALUES, kept, **CALLS[name])
    original = REDUCTIONS[name](VALUES, kept, counted=MASK, **CALLS[name])
    assert original.count == CASES[name][-1][1]
    assert out.count < original.count
    if name == "token":
        np.testing.assert_allclose([out.total, original.total], 12)
    if name == "sequence":
        np.testing.assert_allclose([out.total, original.total], [1.5 + 4.5, 1 + 4.5])


def test_a_counted_nan_is_not_swallowed_and_a_masked_one_is():
    nan = VALUES.at[0, 1, 2].set(jnp.nan)
    assert np.isfinite(aggregate.token_mean(nan, MASK))
    assert np.isnan(aggregate.token_mean(nan.at[0, 0, 0].set(jnp.nan), MASK))


def test_bfloat16_values_are_summed_in_float32():
    ones = jnp.ones((1000,), jnp.bfloat16)
    assert aggregate.token_total(ones, ones == 1).total == 1000
