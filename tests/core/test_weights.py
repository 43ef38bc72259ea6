"""Weights by hand, per token, sequence, group and batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import ratios, traces, weights

LOG = jnp.log(jnp.array([[[2.0, 0.5, 3.0], [0.25, 2.0, 1.0]], [[4.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]))
MASK = jnp.array([[[1, 1, 1], [1, 1, 0]], [[1, 0, 0], [0, 0, 0]]], bool)
TOKEN_WEIGHTS = {
    "unit": weights.unit_weight,
    "plain": weights.plain_weight,
    "truncated": lambda d, m: weights.truncated_weight(d, m, cap=2.0, floor=0.4),
    "masked": lambda d, m: weights.masked_weight(d, m, cap=2.5, floor=0.4),
    "sequence_truncated": lambda d, m: weights.sequence_truncated_weight(d, m, cap=3.5),
    "sequence_masked": lambda d, m: weights.sequence_masked_weight(d, m, cap=3.5),
    "group": weights.group_normalized_weight,
    "batch": weights.batch_normalized_weight,
    "trace": lambda d, m: traces.trace_weight(d, m, decay=0.9, cap=1.0),
}
every_weight = pytest.mark.parametrize("name", sorted(TOKEN_WEIGHTS))


def kept(array):
    """The values at kept tokens, sequence by sequence."""
    return np.asarray(array)[np.asarray(MASK)]


EXPECTED = {
    "unit": [1, 1, 1, 1, 1, 1],
    "plain": [2, 0.5, 3, 0.25, 2, 4],
    "truncated": [2, 0.5, 2, 0.4, 2, 2],
    "masked": [2, 0.5, 0, 0, 2, 0],
    "sequence_truncated": [3, 3, 3, 0.5, 0.5, 3.5],
    "sequence_masked": [3, 3, 3, 0.5, 0.5, 0],
    "group": [2 * 3 / 3.5] * 3 + [2 * 0.5 / 3.5] * 2 + [1],
    "batch": [3 * 3 / 7.5] * 3 + [3 * 0.5 / 7.5] * 2 + [3 * 4 / 7.5],
    "trace": [0.9, 0.9**2 * 0.5, 0.9**3 * 0.5, 0.9 * 0.25, 0.9**2 * 0.25, 0.9],
}


@every_weight
def test_weights_by_hand_are_held_constant_and_finite_far_away(name):
    np.testing.assert_allclose(kept(TOKEN_WEIGHTS[name](LOG, MASK)), EXPECTED[name], rtol=1e-6)
    assert not np.any(jax.grad(lambda d: TOKEN_WEIGHTS[name](d, MASK).sum())(LOG))
    far = LOG.at[0, 0, 0].set(1e4).at[0, 1, 0].set(-1e4)
    assert np.isfinite(kept(TOKEN_WEIGHTS[name](far, MASK))).all()


@pytest.mark.parametrize("name", sorted(set(TOKEN_WEIGHTS) - {"unit"}))
def test_weights_do_not_swallow_nan(name):
    broken = TOKEN_WEIGHTS[name](LOG.at[0, 0, 0].set(jnp.nan), MASK)
    assert np.isnan(broken[0, 0, 0])


def test_group_weights_survive_a_group_that_is_all_far_off_policy():
    """In log space: every rho underflows float32, and the weights are still relative."""
    far = jnp.full((1, 2, 1), -500.0).at[0, 1, 0].add(jnp.log(3.0))
    everything = jnp.ones((1, 2, 1), bool)
    group = weights.group_normalized_weight(far, everything)
    np.testing.assert_allclose(group.ravel(), [0.5, 1.5], rtol=1e-4)


def test_chi_square_is_the_mean_square_less_one():
    log_weights, mask = jnp.log(jnp.array([0.5, 1.0, 1.5, 9.0])), jnp.array([True] * 3 + [False])
    assert weights.chi_square(log_weights, mask) == pytest.approx(0.5 / 3)


@every_weight
def test_masks_and_shapes_are_checked(name):
    with pytest.raises(ValueError, match="mask must be bool, got int32"):
        TOKEN_WEIGHTS[name](LOG, MASK.astype(int))
    with pytest.raises(ValueError, match=r"expected one shape \[..., (G, )?T\]"):
        TOKEN_WEIGHTS[name](LOG, MASK[:1])


def test_the_ratio_saturates_instead_of_overflowing():
    far = jnp.array([1e4, jnp.inf, -jnp.inf, jnp.nan])
    np.testing.assert_array_equal(
        ratios.exp_ratio(far)[:3], np.float32([np.exp(60), np.exp(60), 0])
    )
    assert np.isnan(ratios.exp_ratio(far)[3])
