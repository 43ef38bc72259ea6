"""Properties 17-20: what a baseline from the group does to the expected gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import advantages, bounds, estimators
from ogrpo.core.aggregate import sequence_sum_total
from ogrpo.core.objectives import TokenBatch, reinforce
from tests.exact.draws import EPS, binary, distributions, for_all, values

pytestmark = pytest.mark.slow

Y, G = 3, 3
outcomes = distributions(Y)
rewards = values(Y)


def score_of(pi):
    """[Y, Y] gradients of log softmax at pi: score_y = e_y - pi."""
    return jnp.eye(len(pi)) - pi[None]


def true_gradient(pi, r):
    return (pi * r) @ score_of(pi)


def expected_gradient(advantage_fn, group=G):
    """Jitted exact expectation of the mean group-gradient term, with rho on samples of mu."""

    @jax.jit
    def expected(pi, mu, r):
        drawn = estimators.every_sample(mu, group)
        ratio, scores = pi / mu, score_of(pi)

        def one_group(y):
            return estimators.gradient_terms(ratio[y], advantage_fn(r[y]), scores[y]).mean(0)

        return drawn.probs @ jax.vmap(one_group)(drawn.outcomes)

    return expected


centered, leave_one_out, none = map(
    expected_gradient, (advantages.centered, advantages.leave_one_out, lambda r: r)
)


@for_all(outcomes, outcomes, rewards)
def test_group_mean_baseline_shrinks_the_gradient(pi, mu, r):
    """Property 17: E = (1 - 1/G) grad J on policy, and off policy with rho_i, whatever mu.

    Theorems NSample.group_mean_factor, NSample.group_mean_factor_off_policy.
    """
    for sampler in (pi, mu):
        shrunk = (1 - 1 / G) * true_gradient(pi, r)
        np.testing.assert_allclose(centered(pi, sampler, r), shrunk, atol=EPS)


def above_the_best_of_the_others(r):
    """A baseline that is no mean: each completion against the largest reward of the rest."""
    rest = jnp.where(jnp.eye(len(r), dtype=bool), -jnp.inf, r[None])
    return r - rest.max(axis=1)


above_best = expected_gradient(above_the_best_of_the_others)


@for_all(outcomes, outcomes, rewards)
def test_any_function_of_the_others_is_an_unbiased_baseline(pi, mu, r):
    """Property 18: their mean, G/(G-1) times the group mean's; their largest reward; and none.

    Theorems NSample.leave_one_out_unbiased, NSample.leave_one_out_vs_mean,
    NSample.baseline_unbiased.
    """
    alone = advantages.leave_one_out(jnp.asarray(r))
    scaled = G / (G - 1) * advantages.centered(jnp.asarray(r))
    np.testing.assert_allclose(alone, scaled, atol=EPS)
    np.testing.assert_allclose(alone, r - [np.delete(r, i).mean() for i in range(Y)], atol=EPS)
    for expected in (leave_one_out, above_best, none):
        np.testing.assert_allclose(expected(pi, mu, r), true_gradient(pi, r), atol=EPS)


SKEWED = np.array([0.45, 0.2, 0.35])


@pytest.mark.parametrize("k", [1, 2, 3])
def test_max_at_k_is_unbiased_for_the_best_of_k(k):
    r = np.array([0.0, 0.25, 1.0])

    def best(logits):
        drawn = estimators.every_sample(jax.nn.softmax(logits), k)
        return drawn.probs @ jnp.asarray(r)[drawn.outcomes].max(-1)

    ours = expected_gradient(partial(advantages.max_at_k, k=float(k)), 4)(SKEWED, SKEWED, r)
    np.testing.assert_allclose(ours, jax.grad(best)(jnp.log(SKEWED)), rtol=1e-7, atol=EPS)


@pytest.mark.parametrize("n", [2, 4])
def test_maxrl_is_unbiased_for_the_log_likelihood_cut_after_one_term_less_than_the_group(n):
    """And uncentred for that of as many terms."""

    def cut(terms):
        def value(logits):
            failure = 1 - jax.nn.softmax(logits)[0]
            return -sum(failure**j / j for j in range(1, terms + 1))

        return jax.grad(value)(jnp.log(SKEWED))

    def uncentred(r):
        return jnp.where(r.mean() > 0, r / jnp.where(r.mean() > 0, r.mean(), 1), 0)

    success = np.array([1.0, 0.0, 0.0])
    for fn, terms in ((advantages.mean_normalized, n - 1), (uncentred, n)):
        ours = expected_gradient(fn, n)(SKEWED, SKEWED, success)
        np.testing.assert_allclose(ours, cut(terms), rtol=1e-7, atol=EPS)


STANDARDIZED = {
    (group, ddof, eps): expected_gradient(
        partial(advantages.group_standardized, ddof=ddof, eps_inside=eps), group
    )
    for group, ddof, eps in [(2, 0, 0.0), (4, 0, 0.0), (4, 1, 0.0), (3, 0, 0.2)]
}


@pytest.mark.parametrize("case", STANDARDIZED)
@for_all(pi=outcomes, mu=outcomes, r=binary(Y))
def test_standardized_gradient_is_a_difficulty_times_the_true_one(case, pi, mu, r):
    """Property 19: binary reward: E[grad] = c_G(p_mu) grad J(pi), off policy with rho_i.

    Theorems NSample.binary_advantage, NSample.binomial_others, NSample.c_group_binomial.
    """
    group, ddof, eps = case
    gain = bounds.standardized_gain(mu @ r, group, ddof=ddof, eps=eps)
    actual = STANDARDIZED[case](pi, mu, r)
    np.testing.assert_allclose(actual, gain * true_gradient(pi, r), atol=EPS)


def test_standardized_gain_at_its_ends():
    """Property 19: c_2 = 1, c_G(0+) = sqrt(G - 1), c_G -> 1/sqrt(p(1-p)), Bessel sqrt((G-1)/G)."""
    for p in (0.1, 0.5, 0.93):
        assert bounds.standardized_gain(p, 2) == pytest.approx(1)
        limit = 1 / np.sqrt(p * (1 - p))
        assert bounds.standardized_gain(p, 4000) == pytest.approx(limit, rel=2e-3)
        bessel = bounds.standardized_gain(p, 5, ddof=1)
        assert bessel == pytest.approx(np.sqrt(4 / 5) * float(bounds.standardized_gain(p, 5)))
    for group in (3, 8):
        assert bounds.standardized_gain(1e-9, group) == pytest.approx(np.sqrt(group - 1), rel=1e-6)


@jax.jit
def summed_gradients(pi, r):
    """Gradients in the logits of every group's summed loss, [S, Y], of all groups and of survivors.

    And which groups survive, and the chance of each.
    """
    drawn = estimators.every_sample(pi, G)
    groups = r[drawn.outcomes]
    credit = advantages.group_standardized(groups)[..., None]
    survived = ~advantages.zero_variance_mask(groups)

    def losses(x, mask):
        log_probs = jax.nn.log_softmax(x)[drawn.outcomes][..., None]
        loss = reinforce(log_probs, TokenBatch(credit, mask, log_probs))
        return jax.vmap(lambda v, m: sequence_sum_total(v, m).total)(loss, mask)

    every = jnp.ones(credit.shape, bool)
    masks = (every, every & survived[:, None, None])
    return [jax.jacobian(losses)(jnp.log(pi), mask) for mask in masks], survived, drawn.probs


@for_all(outcomes, binary(Y))
def test_masking_zero_variance_groups_leaves_the_sum_and_divides_the_mean_of_survivors(pi, r):
    """Property 20: the summed gradient is unchanged, group by group.

    E[grad | survived] = E[grad] / (1 - p^G - (1-p)^G). Theorems Masking.zero_variance_gradient,
    Masking.masking_keeps_sum, Masking.survival_probability, Masking.survivors_mean.
    """
    (whole, gradients), survived, probs = summed_gradients(pi, r)
    np.testing.assert_allclose(gradients, whole, atol=EPS)
    kept, p = probs * survived.astype(float), pi @ r
    chance = 1 - p**G - (1 - p) ** G
    np.testing.assert_allclose(kept.sum(), chance, atol=EPS)
    np.testing.assert_allclose(kept @ gradients / kept.sum(), probs @ whole / chance, atol=EPS)


def test_refuted_a_batch_over_its_survivors_divides_by_their_chance():
    """Two prompts of a batch share one divisor: neither is divided by its own chance to survive.

    Over the K survivors of a batch, prompt x weighs E[1 / (1 + K')], K' the other prompts'. With
    p = .5 and .1, G = 3, the harder prompt, which survives less often, weighs less, not more.
    """
    r, batches = np.array([0.0, 1.0]), []
    for p in (0.5, 0.1):
        drawn = estimators.every_sample(jnp.array([1 - p, p]), G)
        groups = jnp.asarray(r)[drawn.outcomes]
        gradient = (advantages.centered(groups) * (drawn.outcomes.astype(float) - p)).mean(-1)
        survived = ~advantages.zero_variance_mask(groups)
        batches.append((drawn.probs, survived.astype(float), gradient))
    (pa, sa, ga), (pb, sb, gb) = batches
    law = pa[:, None] * pb[None]
    survivors = jnp.maximum(sa[:, None] + sb[None], 1)
    chances = [1 - p**G - (1 - p) ** G for p in (0.5, 0.1)]
    prompts = ((ga[:, None], pa @ ga, chances), (gb[None], pb @ gb, chances[::-1]))
    for gradient, mean, (survives, other) in prompts:
        share = (law * gradient / survivors).sum() / mean
        np.testing.assert_allclose(share, 1 - other / 2, atol=EPS)
        assert abs(share - 1 / (2 * survives)) > 0.05
    assert 1 - chances[0] / 2 < 1 - chances[1] / 2


@for_all(values(Y, low=0, high=8), st.sampled_from([0, 1]), st.sampled_from([0.0, 1e-8, 0.1]))
def test_equal_rewards_get_exactly_nothing(r, ddof, eps):
    """However small the eps, rounding is not blown up into an advantage."""
    same = jnp.full(G, 0.1) * r[0]
    standardized = advantages.group_standardized(same, ddof=ddof, eps_outside=eps)
    assert not np.any(standardized)
