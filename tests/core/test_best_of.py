"""Advantages of sets of completions: against every set, and every batch that could be drawn."""

from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import advantages, returns
from ogrpo.core.algorithms import ALGORITHMS, with_parts
from ogrpo.core.divergences import k3, straight_through_k3
from ogrpo.core.returns import Along

RNG = np.random.default_rng(8)
GRADED = np.array([[0.5, 0.0, 2.0, 2.0, 1.0], [1.0, -1.0, -1.0, 0.25, 0.0]])
BINARY = np.array([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0], [1.0] * 5, [0.0] * 5])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_advantages_of_sets_are_their_definitions_over_every_set(k):
    of_best = advantages.max_at_k(jnp.asarray(GRADED), k=jnp.float32(k))
    of_any = advantages.pass_at_k(jnp.asarray(BINARY), k=float(k))
    sets = list(combinations(range(5), k))
    held = np.array([[i in s for s in sets] for i in range(5)])
    for row, found in zip(GRADED, of_best, strict=True):
        best = np.array([row[list(s)].max() for s in sets])
        gaps = np.array([best[x].mean() - best[~x].mean() for x in held])
        np.testing.assert_allclose(found, k * gaps, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.sum(), 0, atol=1e-4)  # centred
    for row, found in zip(BINARY, of_any, strict=True):
        values = np.array([row[list(s)].max() for s in sets])
        lead = np.array([values[x].mean() for x in held]) - values.mean()
        expected = lead / values.std() if values.std() > 1e-9 else 0 * lead
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    if k == 1:
        alone = advantages.leave_one_out(jnp.asarray(GRADED))
        np.testing.assert_allclose(of_best, alone, rtol=1e-4, atol=1e-6)


REWARDS = np.array([0.0, 0.25, 1.0])
SUCCESS = np.array([1.0, 0.0, 0.0])


def expected_gradient(fn, rewards, theta, n):
    """E[(1/n) sum_i A_i d log p(y_i)] over every batch of n draws of a softmax on three outcomes."""
    p = np.exp(theta) / np.exp(theta).sum()
    score = np.eye(3) - p
    drawn = np.array(list(product(range(3), repeat=n)))
    credit = np.asarray(fn(jnp.asarray(rewards[drawn], jnp.float32)), np.float64)
    chance = p[drawn].prod(axis=1)
    return np.einsum("b,bi,bij->j", chance, credit, score[drawn]) / n


def true_gradient(objective, theta, step=1e-5):
    out = []
    for i in range(3):
        up, down = (theta + sign * step * np.eye(3)[i] for sign in (1, -1))
        values = [objective(np.exp(t) / np.exp(t).sum()) for t in (up, down)]
        out.append((values[0] - values[1]) / (2 * step))
    return np.array(out)


THETA = np.array([0.3, -0.4, 0.1])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_max_at_k_is_unbiased_for_the_best_of_k(k):
    def best(p):
        draws = list(product(range(3), repeat=k))
        return sum(p[list(d)].prod() * REWARDS[list(d)].max() for d in draws)

    ours = expected_gradient(lambda r: advantages.max_at_k(r, k=float(k)), REWARDS, THETA, n=4)
    np.testing.assert_allclose(ours, true_gradient(best, THETA), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [2, 4])
def test_maxrl_is_unbiased_for_the_log_likelihood_cut_after_one_term_less_than_the_group(n):
    """And uncentred for that of as many terms."""

    def cut(terms):
        return lambda p: -sum((1 - p[0]) ** j / j for j in range(1, terms + 1))

    ours = expected_gradient(advantages.mean_normalized, SUCCESS, THETA, n)
    np.testing.assert_allclose(ours, true_gradient(cut(n - 1), THETA), rtol=1e-4, atol=1e-5)

    def uncentred(rewards):
        mean = rewards.mean(-1, keepdims=True)
        return jnp.where(mean > 0, rewards / jnp.where(mean > 0, mean, 1), 0)

    raw = expected_gradient(uncentred, SUCCESS, THETA, n)
    np.testing.assert_allclose(raw, true_gradient(cut(n), THETA), rtol=1e-4, atol=1e-5)


MASK = np.arange(6) < RNG.integers(0, 7, (2, 5, 1))
ALONG = Along(jnp.asarray(MASK))


def test_opos_baseline_weighs_by_length():
    lengths = MASK.sum(-1)
    baseline = (lengths * GRADED).sum(-1, keepdims=True) / lengths.sum(-1, keepdims=True)
    ours = returns.length_weighted(jnp.asarray(GRADED), ALONG)
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
    ours = returns.overlong_standardized(rewards, ALONG, length=6.0, overlong=0.5)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    whole = with_parts(ALGORITHMS["dapo"], advantage="overlong_standardized")
    knobs = whole.settings({"length": 6.0, "overlong": 0.5})
    np.testing.assert_allclose(whole.credit(rewards, knobs, along=ALONG), ours, rtol=1e-6)


@pytest.mark.parametrize("fn", [advantages.raw, advantages.centered])
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(fn):
    plain, mask = fn(jnp.asarray(GRADED)), jnp.asarray(MASK)
    ours = np.asarray(returns.whitened(jnp.asarray(GRADED), ALONG, advantage_fn=fn))
    tokens = np.repeat(ours.ravel(), MASK.sum(-1).ravel())
    np.testing.assert_allclose([tokens.mean(), tokens.var(ddof=1)], [0, 1], atol=1e-5)
    np.testing.assert_allclose(returns.whiten(plain, mask), ours, rtol=1e-6)
    each = returns.whiten(jnp.broadcast_to(plain[..., None], MASK.shape), mask)
    np.testing.assert_allclose(each, np.where(MASK, ours[..., None], 0), rtol=1e-5, atol=1e-6)
    assert not np.any(returns.whitened(jnp.full((2, 5), 0.1), ALONG, advantage_fn=advantages.raw))


def test_gdpo_standardises_each_reward_by_itself():
    both = np.stack([GRADED, 100 * RNG.normal(size=GRADED.shape)], axis=-1)
    weights = np.array([1.0, 0.5])
    each = (both - both.mean(1, keepdims=True)) / (both.std(1, ddof=1, keepdims=True) + 1e-6)
    ours = advantages.decoupled_standardized(
        jnp.asarray(both, jnp.float32), weights=jnp.asarray(weights, jnp.float32)
    )
    np.testing.assert_allclose(ours, each @ weights, rtol=1e-4, atol=1e-5)


def test_groups_too_small_for_k_are_seen():
    assert np.isnan(advantages.max_at_k(jnp.ones((1, 3)), k=jnp.float32(3))).all()
    assert np.isnan(advantages.pass_at_k(jnp.ones((1, 3)), k=4.0)).all()


def test_the_straight_through_estimator_has_k3s_value_and_k2s_gradient():
    lp, ref = jnp.array([-1.0, -2.0]), jnp.array([-1.4, -0.5])
    np.testing.assert_allclose(straight_through_k3(lp, ref), k3(lp, ref), rtol=1e-6)
    slope = jax.grad(lambda x: straight_through_k3(x, ref).sum())(lp)
    np.testing.assert_allclose(slope, lp - ref, rtol=1e-6)
