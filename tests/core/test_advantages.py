"""Advantages by hand and by their definitions, and the groups that have none."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import advantages, returns
from ogrpo.core.algorithms import ALGORITHMS, with_parts
from ogrpo.core.divergences import k3, straight_through_k3
from ogrpo.core.returns import Trajectory
from tests.core.cases import of_sets

R = jnp.array([[1.0, 0.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
TAKES_A_GROUP = {
    "centered": advantages.centered,
    "leave_one_out": advantages.leave_one_out,
    "group_standardized": advantages.group_standardized,
    "batch_standardized": advantages.batch_standardized,
    "lowered_baseline": advantages.lowered_baseline,
    "soft_value": advantages.soft_value,
    "exponentially_weighted": advantages.exponentially_weighted,
    "drop_negatives": lambda r: advantages.drop_negatives(r, jax.random.key(0)),
    "positive_part": advantages.positive_part,
    "mean_normalized": advantages.mean_normalized,
    "max_at_k": advantages.max_at_k,
    "pass_at_k": advantages.pass_at_k,
}
NEEDS_NO_SIBLING = {
    "raw": (advantages.raw, 1),
    "successes": (advantages.successes, 1),
    "above_baseline": (lambda r: advantages.above_baseline(r, baseline=0.5), 0.5),
    "leave_prompt_out": (advantages.leave_prompt_out, 1),
    "batch_centered": (advantages.batch_centered, 0.5),
}


@pytest.mark.parametrize("name", sorted(TAKES_A_GROUP))
@pytest.mark.parametrize("shape", [(), (3, 1), (2, 0)])
def test_a_group_of_one_has_no_baseline(name, shape):
    with pytest.raises(ValueError, match="G >= 2"):
        TAKES_A_GROUP[name](jnp.zeros(shape))


@pytest.mark.parametrize("name", sorted(NEEDS_NO_SIBLING))
def test_one_completion_is_enough_without_siblings_and_none_is_not(name):
    fn, expected = NEEDS_NO_SIBLING[name]
    assert fn(jnp.array([[1.0], [0.0]]))[0, 0] == expected
    for shape in [(), (2, 0)]:
        with pytest.raises(ValueError, match=r"G >= 1|N >= 2"):
            fn(jnp.zeros(shape))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("inside", "outside"), [(0.0, 1e-4), (0.01, 0.0), (0.0, 0.0)])
def test_standardized_by_hand(ddof, inside, outside):
    r = np.asarray(R[0], np.float64)
    expected = (r - 1) / (np.sqrt(r.var(ddof=ddof) + inside) + outside)
    ours = advantages.group_standardized(R, ddof=ddof, eps_inside=inside, eps_outside=outside)
    np.testing.assert_allclose(ours[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(ours[1], 0)


def test_batch_standardized_has_one_scale():
    ours = advantages.batch_standardized(R, ddof=1, eps_outside=1e-4)
    np.testing.assert_allclose(ours[0], (R[0] - 1) / (np.std(R, ddof=1) + 1e-4), rtol=1e-5)
    np.testing.assert_array_equal(ours[1], 0)
    np.testing.assert_array_equal(advantages.batch_standardized(R * 0 + 0.1), 0)


def test_zero_variance_groups_are_found():
    np.testing.assert_array_equal(advantages.zero_variance_mask(R), [False, True])
    np.testing.assert_array_equal(advantages.zero_variance_mask(R[:, :1]), [True, True])


def test_what_was_not_judged_is_told_apart_from_0():
    values, present = advantages.judged(jnp.array([0.0, jnp.nan, 2.0]))
    np.testing.assert_array_equal(values, [0, 0, 2])
    np.testing.assert_array_equal(present, [True, False, True])


@pytest.mark.parametrize("name", sorted(TAKES_A_GROUP | NEEDS_NO_SIBLING))
def test_a_completion_that_was_not_judged_is_left_out(name):
    """Its siblings earn what they would if it had not been drawn; a whole group earns nothing."""
    fn = TAKES_A_GROUP[name] if name in TAKES_A_GROUP else NEEDS_NO_SIBLING[name][0]
    rewards = jnp.array([[1.0, 0.25, 3.0], [2.0, 2.0, 2.0], [0.5, 1.5, 1.0]])
    if name == "pass_at_k":  # of successes and failures
        rewards = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    without_a_group = fn(rewards.at[1].set(jnp.nan))
    np.testing.assert_array_equal(without_a_group[1], 0)
    assert np.isfinite(without_a_group).all()
    beside = jnp.concatenate([rewards[:, :1], jnp.full((3, 1), jnp.nan), rewards[:, 1:]], axis=1)
    earned = fn(beside)
    np.testing.assert_array_equal(earned[:, 1], 0)
    if name == "drop_negatives":  # other numbers are drawn, of a group of another size
        np.testing.assert_allclose(earned.sum(1), 0, atol=1e-6)
        return
    np.testing.assert_allclose(earned[:, [0, 2, 3]], fn(rewards), rtol=1e-6, atol=1e-7)


# Of sets of completions, and of their lengths.

RNG = np.random.default_rng(8)
GRADED = np.array([[0.5, 0.0, 2.0, 2.0, 1.0], [1.0, -1.0, -1.0, 0.25, 0.0]])
BINARY = np.array([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0], [1.0] * 5, [0.0] * 5])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_advantages_of_sets_are_their_definitions_over_every_set(k):
    of_best = advantages.max_at_k(jnp.asarray(GRADED), k=jnp.float32(k))
    of_any = advantages.pass_at_k(jnp.asarray(BINARY), k=float(k))
    for row, actual in zip(GRADED, of_best, strict=True):
        having, lacking, _ = of_sets(row, k)
        np.testing.assert_allclose(actual, k * (having - lacking), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(actual.sum(), 0, atol=1e-4)  # centred
    for row, actual in zip(BINARY, of_any, strict=True):
        having, _, values = of_sets(row, k)
        lead = having - values.mean()
        expected = lead / values.std() if values.std() > 1e-9 else 0 * lead
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
    if k == 1:
        alone = advantages.leave_one_out(jnp.asarray(GRADED))
        np.testing.assert_allclose(of_best, alone, rtol=1e-4, atol=1e-6)


def test_advantages_of_sets_are_those_of_large_groups_too():
    """There are 6e40 sets of 32 of 256 completions, beyond float32: the shares are of logs."""
    n, k, failures = 256, 32, 250
    rewards = jnp.asarray(np.arange(n) >= failures, jnp.float32)
    passed = 1 - math.comb(failures, k) / math.comb(n, k)
    beside_failure = 1 - math.comb(failures - 1, k - 1) / math.comb(n - 1, k - 1)
    without = [1 - math.comb(f, k) / math.comb(n - 1, k) for f in (failures - 1, failures)]
    of_any = (np.array([beside_failure, 1]) - passed) / math.sqrt(passed * (1 - passed))
    of_best = k * (np.array([beside_failure, 1]) - without)
    for fn, expected, rtol in (
        (advantages.pass_at_k, of_any, 1e-5),
        (advantages.max_at_k, of_best, 0.01),
    ):
        np.testing.assert_allclose(fn(rewards, k=float(k))[jnp.array([0, -1])], expected, rtol=rtol)
    np.testing.assert_array_equal(advantages.max_at_k(jnp.full(n, 10.0), k=float(k)), 0)
    high = advantages.max_at_k(rewards + 100, k=float(k))
    np.testing.assert_array_equal(high, advantages.max_at_k(rewards, k=float(k)))


def test_groups_too_small_for_k_are_seen():
    assert np.isnan(advantages.max_at_k(jnp.ones((1, 3)), k=jnp.float32(3))).all()
    assert np.isnan(advantages.pass_at_k(jnp.ones((1, 3)), k=4.0)).all()


MASK = np.arange(6) < RNG.integers(0, 7, (2, 5, 1))
TRAJECTORY = Trajectory(jnp.asarray(MASK))


def test_opos_baseline_weighs_by_length():
    lengths = MASK.sum(-1)
    baseline = (lengths * GRADED).sum(-1, keepdims=True) / lengths.sum(-1, keepdims=True)
    ours = returns.length_weighted(jnp.asarray(GRADED), TRAJECTORY)
    np.testing.assert_allclose(ours, GRADED - baseline, rtol=1e-6)


def test_dapos_penalty_grows_over_the_last_share_of_the_length():
    """Its own numbers: 16,384 tokens are free of 20,480, and 18,432 cost one half."""
    lengths = jnp.array([100, 16384, 18432, 20480, 30000])
    penalty = returns.overlong_penalty(lengths, length=20480.0, overlong=0.2)
    np.testing.assert_allclose(penalty, [0, 0, -0.5, -1, -1], atol=1e-6)
    hard = returns.overlong_penalty(lengths, length=20480.0, overlong=0.0)
    np.testing.assert_allclose(hard, [0, 0, 0, 0, -1], atol=1e-6)
    shaped = GRADED - np.clip((MASK.sum(-1) - 3) / 3, 0, 1)
    expected = (shaped - shaped.mean(1, keepdims=True)) / shaped.std(1, keepdims=True)
    rewards = jnp.asarray(GRADED)
    ours = returns.overlong_standardized(rewards, TRAJECTORY, length=6.0, overlong=0.5)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    whole = with_parts(ALGORITHMS["dapo"], advantage="overlong_standardized")
    knobs = whole.settings({"length": 6.0, "overlong": 0.5})
    np.testing.assert_allclose(
        whole.compute_advantages(rewards, knobs, trajectory=TRAJECTORY), ours, rtol=1e-6
    )


@pytest.mark.parametrize("fn", [advantages.raw, advantages.centered])
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(fn):
    plain, mask = fn(jnp.asarray(GRADED)), jnp.asarray(MASK)
    ours = np.asarray(returns.whitened(jnp.asarray(GRADED), TRAJECTORY, advantage_fn=fn))
    tokens = np.repeat(ours.ravel(), MASK.sum(-1).ravel())
    np.testing.assert_allclose([tokens.mean(), tokens.var(ddof=1)], [0, 1], atol=1e-5)
    np.testing.assert_allclose(returns.whiten(plain, mask), ours, rtol=1e-6)
    each = returns.whiten(jnp.broadcast_to(plain[..., None], MASK.shape), mask)
    np.testing.assert_allclose(each, np.where(MASK, ours[..., None], 0), rtol=1e-5, atol=1e-6)
    assert not np.any(
        returns.whitened(jnp.full((2, 5), 0.1), TRAJECTORY, advantage_fn=advantages.raw)
    )


def test_gdpo_standardises_each_reward_by_itself():
    both = np.stack([GRADED, 100 * RNG.normal(size=GRADED.shape)], axis=-1)
    weights = np.array([1.0, 0.5])
    each = (both - both.mean(1, keepdims=True)) / (both.std(1, ddof=1, keepdims=True) + 1e-6)
    ours = advantages.decoupled_standardized(
        jnp.asarray(both, jnp.float32), weights=jnp.asarray(weights, jnp.float32)
    )
    np.testing.assert_allclose(ours, each @ weights, rtol=1e-4, atol=1e-5)


def test_the_straight_through_estimator_has_k3s_value_and_k2s_gradient():
    lp, ref = jnp.array([-1.0, -2.0]), jnp.array([-1.4, -0.5])
    np.testing.assert_allclose(straight_through_k3(lp, ref), k3(lp, ref), rtol=1e-6)
    slope = jax.grad(lambda x: straight_through_k3(x, ref).sum())(lp)
    np.testing.assert_allclose(slope, lp - ref, rtol=1e-6)
