"""Weights by hand, per token, sequence, group and batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import ratios, traces, weights

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
