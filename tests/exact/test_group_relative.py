"""Property 27: group-relative REINFORCE as a regression, and its named relatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import lambertw

from ogrpo.core import advantages, bounds, estimators, objectives
from ogrpo.core.objectives import TokenBatch, group_regression
from tests.exact.draws import EPS, distributions, eighths, for_all, values, widths

pytestmark = pytest.mark.slow

Y, K = 4, 4
taus = eighths(1, 16)
samples = st.lists(st.integers(0, Y - 1), min_size=K, max_size=K).map(np.array)


def log_policy(logits, y):
    return jax.nn.log_softmax(logits)[y]


@jax.jit
def regression_gradient(logits, anchor, y, r, tau):
    def loss(x):
        return group_regression(r, log_policy(x, y) - log_policy(anchor, y), tau=tau).mean()

    return jax.value_and_grad(loss)(logits)


@for_all(values(), values(), samples, values(), taus)
def test_the_regression_is_reinforce_plus_a_variance_and_opmd_with_the_square(
    logits, anchor, y, r, tau
):
    """Property 27: L/(2 tau) = Var(r)/(2 tau) - mean((r - rbar) l) + (tau/2) Var(l).

    OPMD is -mean((r - rbar) log pi) + (tau/2) mean(l^2). Theorems
    GroupReinforce.pairwise_expansion, GroupReinforce.opmd_minus_pairwise.
    """
    loss, _ = regression_gradient(logits, anchor, y, r, tau)
    centered = r - r.mean()
    log_probs, batch = one_token(y, logits, anchor, centered)
    moved = np.asarray(log_probs - batch.behavior_log_probs)[:, 0]
    expected = r.var() / (2 * tau) - (centered * moved).mean() + tau / 2 * moved.var()
    np.testing.assert_allclose(loss / (2 * tau), expected, atol=EPS)
    reinforce, square = -(centered * log_probs[:, 0]).mean(), tau / 2 * (moved**2).mean()
    by_token = objectives.opmd_kimi(log_probs, batch, coef=tau / 2)
    for opmd in (by_token, objectives.opmd_kimi_sequence(log_probs, batch, tau=tau)):
        np.testing.assert_allclose(opmd.mean(), reinforce + square, atol=EPS)


def one_token(y, logits, anchor, advantage):
    """Completions of one token: log-probs and a batch, [K, 1]."""
    behavior = log_policy(anchor, y)[:, None]
    spread = jnp.asarray(advantage)[:, None]
    mask = jnp.ones_like(spread, bool)
    return log_policy(logits, y)[:, None], TokenBatch(spread, mask, behavior, None, behavior)


@for_all(values(), samples, values(), taus)
def test_its_gradient_is_group_relative_reinforce_whoever_drew(logits, y, r, tau):
    """Property 27: -grad L(theta_t) / (2 tau) = K^-1 sum (r_i - rbar) s_i for any samples.

    And -grad of OPMD at the sampling parameter, where its spread has no slope. Theorems
    GroupReinforce.group_reinforce_gradient, GroupReinforce.opmd_gradient.
    """
    centered = advantages.centered(jnp.asarray(r))
    scores = (jnp.eye(Y) - jax.nn.softmax(logits)[None])[y]
    expected = estimators.gradient_terms(jnp.ones(K), centered, scores).mean(0)
    _, gradient = regression_gradient(logits, logits, y, r, tau)
    np.testing.assert_allclose(-gradient / (2 * tau), expected, atol=EPS)

    def opmd(x):
        log_probs, batch = one_token(y, x, logits, centered)
        return objectives.opmd_kimi_sequence(log_probs, batch, tau=tau).mean()

    np.testing.assert_allclose(-jax.grad(opmd)(jnp.asarray(logits)), expected, atol=EPS)


def pmd_mean_target(r, mu, tau):
    """log pi*/mu with tau log(pi*/mu) + tau lambda pi*/mu = r - E_mu r, and lambda = KL(mu||pi*).

    The stationary point of E_pi[r] - tau KL(pi||mu) - (tau lambda / 2) chi^2(pi||mu).
    """
    lead = (r - mu @ r) / tau

    def moved(multiplier):
        return lead - lambertw(multiplier * np.exp(lead)).real

    multiplier = brentq(lambda x: mu @ np.exp(moved(x)) - 1, -1e-6, 100.0, xtol=1e-15)
    return moved(multiplier), multiplier


@for_all(distributions(), values(), eighths(4, 16), values())
def test_opmds_minimum_is_mirror_descent_with_kl_and_chi_square(mu, r, tau, step):
    """PMD-mean (arXiv:2602.05933), the mean reward for the log-partition, of one token's policy.

    With the mean of all outcomes as baseline, OPMD's expected loss over mu has no slope at pi*,
    rises from there, and is (tau/2) (log pi/mu - (r - E_mu r)/tau)^2 but for a constant.
    """
    moved, multiplier = pmd_mean_target(r, mu, tau)
    np.testing.assert_allclose(multiplier, -mu @ moved, atol=1e-6)
    best, lead = jnp.log(mu) + moved, jnp.asarray(r - mu @ r)

    def loss(x):
        log_probs, batch = one_token(np.arange(Y), x, jnp.log(mu), lead)
        by_token = objectives.opmd_kimi(log_probs, batch, coef=tau / 2)[:, 0]
        whole = objectives.opmd_kimi_sequence(log_probs, batch, tau=tau)[:, 0]
        return mu @ whole, mu @ by_token

    value, slope = jax.value_and_grad(lambda x: loss(x)[0])(best)
    np.testing.assert_allclose(slope, 0, atol=1e-7)
    elsewhere = loss(best + jnp.asarray(step))
    assert elsewhere[0] >= value - EPS
    np.testing.assert_allclose(*elsewhere, atol=EPS)
    at = np.asarray(jax.nn.log_softmax(best + jnp.asarray(step))) - np.log(mu)
    square = tau / 2 * mu @ (at - lead / tau) ** 2 - tau / 2 * mu @ (moved - lead / tau) ** 2
    np.testing.assert_allclose(elsewhere[0] - value, square, atol=1e-8)


@for_all(distributions(), values(), values(), widths)
def test_asymre_adds_a_divergence_from_the_sampler(mu, logits, r, shift):
    """Property 27: lowering the baseline by c adds c KL(mu||pi) + const, in expectation.

    And c times the sum of the scores. Theorems GroupReinforce.asymre_kl, GroupReinforce.asymre_extra.
    """

    def loss(x, lower):
        credit = r - mu @ r + lower
        return mu @ objectives.reinforce(*one_token(np.arange(Y), x, x, credit))[:, 0]

    lowered, plain = (jax.grad(loss)(jnp.asarray(logits), by) for by in (shift, 0.0))
    divergence = jax.grad(lambda x: bounds.kl_divergence(mu, jax.nn.softmax(x)))(logits)
    np.testing.assert_allclose(lowered - plain, shift * divergence, atol=EPS)
    credit, scores = advantages.lowered_baseline(jnp.asarray(r), shift=shift), logits
    np.testing.assert_allclose(credit, r - (r.mean() - shift), atol=EPS)
    added = shift * scores.sum()
    np.testing.assert_allclose(credit @ scores, (r - r.mean()) @ scores + added, atol=EPS)


@for_all(values(), values(low=0, high=64).filter(np.any), values(K, 2))
def test_pair_weights_give_the_weighted_mean_as_baseline(r, w, s):
    """Property 27: sum_{i<j} w_i w_j (r_i - r_j)(s_i - s_j) = W sum w_i (r_i - rbar_w) s_i.

    Theorem GroupReinforce.pairwise_gradient.
    """
    pairs = sum(w[i] * w[j] * (r[i] - r[j]) * (s[i] - s[j]) for i in range(K) for j in range(i))
    lead = r - w @ r / w.sum()
    weighted = estimators.gradient_terms(*map(jnp.asarray, (w, lead, s)))
    np.testing.assert_allclose(pairs, w.sum() * weighted.sum(0), atol=1e-8)


@for_all(values(), st.integers(0, 2**20))
def test_red_drop_is_pair_weights_of_zero_and_one(r, seed):
    """Property 27: the *subset* mean is the baseline; negatives drop to the number of positives.

    Theorem GroupReinforce.red_drop_mean.
    """
    dropped = advantages.drop_negatives(jnp.asarray(r), jax.random.key(seed))
    positive = r - r.mean() >= 0
    kept = positive | (np.asarray(dropped) != 0)  # a negative that is kept is below the mean
    assert kept[~positive].sum() == min(positive.sum(), (~positive).sum())
    np.testing.assert_allclose(dropped, np.where(kept, r - r[kept].mean(), 0), atol=EPS)


@for_all(values(), values(K, 2), taus)
def test_red_weight_pushes_towards_imitation(r, s, tau):
    """Property 27: it exceeds the pair weighting by (rbar_w - rbar) sum w_i s_i.

    Theorem GroupReinforce.red_weight_extra.
    """
    centered = jnp.asarray(r - r.mean())
    w = np.exp(centered / tau)
    ours = advantages.exponentially_weighted(centered, tau=tau) @ s
    rbar_w = w @ r / w.sum()
    symmetric = (w * (r - rbar_w)) @ s
    np.testing.assert_allclose(ours - symmetric, (rbar_w - r.mean()) * (w @ s), atol=1e-7)


@for_all(values(), values(), st.sampled_from([0.05, 0.2]), st.sampled_from([0.05, 0.3]))
def test_rec_one_side_is_has_the_ppo_clips_gradient(moved, advantage, low, high):
    """Property 27: REC-OneSide-IS = autodiff of the PPO clip, away from its kinks."""
    behavior = jnp.full(Y, -1.0)
    batch = TokenBatch(jnp.asarray(advantage), jnp.ones(Y, bool), behavior)
    at = behavior + moved / 7  # sevenths of eighths: never on a kink
    ours, ppo = (
        jax.grad(lambda x, fn=fn: fn(x, batch, eps_low=low, eps_high=high).sum())(at)
        for fn in (objectives.rec_one_side_is, objectives.grpo)
    )
    np.testing.assert_allclose(ours, ppo, atol=EPS)


@for_all(values(), values(), samples, taus)
def test_dpo_begins_as_successes_against_failures_and_regards_order_alone(logits, anchor, y, tau):
    """Where pi = pi_ref: -grad = tau/2 (mean score of successes - mean score of failures).

    Rewards of one order cost the same, and no pair costs nothing.
    """

    def loss(x, start, r):
        log_probs, batch = one_token(y, x, start, np.asarray(r))
        return objectives.dpo(log_probs, batch, tau=tau).mean()

    logits, r = jnp.asarray(logits), np.array([1.0, 0.0, 0.0, 1.0])
    scores = np.asarray((jnp.eye(Y) - jax.nn.softmax(logits)[None])[y])
    expected = tau / 2 * (scores[r == 1].mean(0) - scores[r == 0].mean(0))
    np.testing.assert_allclose(-jax.grad(loss)(logits, logits, r), expected, atol=EPS)
    np.testing.assert_allclose(loss(logits, logits, r), np.log(2), atol=EPS)
    same = [loss(logits, anchor, r) for r in ([0.0, 0.5, 1.0, 1.0], [-3.0, 0.0, 0.1, 0.1])]
    np.testing.assert_array_equal(*same)
    assert loss(logits, anchor, [0.5] * 4) == 0
    mask, z = np.tri(40, dtype=bool), np.zeros((40, 40))  # lengths from 1 to 40
    assert not objectives.dpo(z, TokenBatch(z + 0.1, mask, z, None, z), tau=tau).any()
