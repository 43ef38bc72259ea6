"""Weights and totals by hand, per token, sequence, group and batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import aggregate, ratios, traces, weights
from ogrpo.core.aggregate import Total, mean
from ogrpo.core.algorithms import REDUCTIONS

LOG = jnp.log(jnp.array([[[2.0, 0.5, 3.0], [0.25, 2.0, 1.0]], [[4.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]))
MASK = jnp.array([[[1, 1, 1], [1, 1, 0]], [[1, 0, 0], [0, 0, 0]]], bool)
CASES = {
    "unit": (weights.unit_weight, [1, 1, 1, 1, 1, 1]),
    "plain": (weights.plain_weight, [2, 0.5, 3, 0.25, 2, 4]),
    "truncated": (partial(weights.truncated_weight, cap=2.0, floor=0.4), [2, 0.5, 2, 0.4, 2, 2]),
    "masked": (partial(weights.masked_weight, cap=2.5, floor=0.4), [2, 0.5, 0, 0, 2, 0]),
    "sequence_truncated": (
        partial(weights.sequence_truncated_weight, cap=3.5),
        [3, 3, 3, 0.5, 0.5, 3.5],
    ),
    "sequence_masked": (partial(weights.sequence_masked_weight, cap=3.5), [3, 3, 3, 0.5, 0.5, 0]),
    "group": (weights.group_normalized_weight, [2 * 3 / 3.5] * 3 + [2 * 0.5 / 3.5] * 2 + [1]),
    "batch": (weights.batch_normalized_weight, np.array([3, 3, 3, 0.5, 0.5, 4]) * 3 / 7.5),
    "per decision": (partial(traces.trace_weight, decay=1.0, cap=jnp.inf), [2, 1, 3, 0.25, 0.5, 4]),
    "trace": (
        partial(traces.trace_weight, decay=0.9, cap=1.0),
        [0.9, 0.9**2 * 0.5, 0.9**3 * 0.5, 0.9 * 0.25, 0.9**2 * 0.25, 0.9],
    ),
}


def kept(array):
    """The values at kept tokens, sequence by sequence."""
    return np.asarray(array)[np.asarray(MASK)]


@pytest.mark.parametrize("name", CASES)
def test_weights_by_hand_are_held_constant_finite_far_away_and_checked(name):
    weight, expected = CASES[name]
    np.testing.assert_allclose(kept(weight(LOG, MASK)), expected, rtol=1e-6)
    assert not np.any(jax.grad(lambda d: weight(d, MASK).sum())(LOG))
    for nats in (1e4, jnp.inf):
        far = LOG.at[0, 0].set(nats).at[0, 1, 0].set(-nats)
        assert np.isfinite(kept(weight(far, MASK))).all()
    broken = weight(LOG.at[0, 0, 0].set(jnp.nan), MASK)
    assert np.isnan(broken[0, 0, 0]) == (name != "unit")
    with pytest.raises(ValueError, match="mask must be bool, got int32"):
        weight(LOG, MASK.astype(int))
    with pytest.raises(ValueError, match=r"expected one shape \[..., (G, )?T\]"):
        weight(LOG, MASK[:1])


def test_group_weights_survive_a_group_that_is_all_far_off_policy():
    """In log space: every rho underflows float32, and the weights are still relative."""
    far = jnp.full((1, 2, 1), -500.0).at[0, 1, 0].add(jnp.log(3.0))
    everything = jnp.ones((1, 2, 1), bool)
    group = weights.group_normalized_weight(far, everything)
    np.testing.assert_allclose(group.ravel(), [0.5, 1.5], rtol=1e-4)


def test_chi_square_and_the_effective_share_are_of_the_kept():
    log_weights, mask = jnp.log(jnp.array([0.5, 1.0, 1.5, 9.0])), jnp.array([True] * 3 + [False])
    assert weights.chi_square(log_weights, mask) == pytest.approx(0.5 / 3)
    assert weights.ess_fraction(log_weights, mask) == pytest.approx(3**2 / 3.5 / 3)


def test_the_ratio_saturates_instead_of_overflowing():
    far = jnp.array([1e4, jnp.inf, -jnp.inf, jnp.nan])
    most = np.exp(60)
    np.testing.assert_array_equal(ratios.exp_ratio(far), np.float32([most, most, 0, np.nan]))
    assert ratios.exp_ratio(jnp.float16(70)) == most


VALUES = jnp.arange(1.0, 13.0).reshape(2, 2, 3)
CALLS = {name: {"length": 4.0} if name == "fixed_length" else {} for name in REDUCTIONS}
# Each reduction by its total and its mean, and what it sums and counts.
SUMS = {
    "token": (aggregate.token_total, aggregate.token_mean, (1 + 2 + 3 + 4 + 5 + 7, 6)),
    "sequence": (aggregate.sequence_total, aggregate.sequence_mean, (2 + 4.5 + 7, 3)),
    "sequence_sum": (aggregate.sequence_sum_total, aggregate.sequence_sum_mean, (22, 3)),
    "fixed_length": (aggregate.fixed_length_total, aggregate.fixed_length_mean, (22 / 4, 3)),
    "group": (aggregate.group_total, aggregate.group_mean, (15 / 5 + 7, 2)),
}


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
def test_totals_by_hand_and_nothing_counted_is_nothing(name):
    total_fn, mean_fn, expected = SUMS[name]
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
    assert original.count == SUMS[name][-1][1]
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
