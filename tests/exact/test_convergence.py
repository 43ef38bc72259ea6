"""Off-policy REINFORCE on softmax policies: where it goes, and where it does not (proofs/convergence.md)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import advantages, estimators, objectives
from ogrpo.core.objectives import TokenBatch
from tests.exact.draws import EPS, binary, distributions, eighths, for_all, values

pytestmark = pytest.mark.slow

Y, G = 4, 4
steps = eighths(1, 80)
members = st.lists(st.integers(0, Y - 1), min_size=G, max_size=G).map(np.array)


@jax.jit
def direction(logits, weights):
    """-gradient of sum_y w_y (-log pi(y)), the loss of `reinforce` with advantages w."""

    def loss(x):
        log_probs = jax.nn.log_softmax(x)[:, None]
        mask = jnp.ones_like(log_probs, bool)
        batch = TokenBatch(weights[:, None], mask, log_probs, log_probs, log_probs)
        return objectives.reinforce(log_probs, batch).sum()

    return -jax.grad(loss)(logits)


def climbed(logits, weights, rate, count):
    """The same direction in closed form, w - (sum w) pi, so many times."""
    for _ in range(count):
        logits = logits + rate * (weights - weights.sum() * policy(logits))
    return logits


def policy(logits):
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


def weights_of(mu, r, baseline=None):
    return mu * (r - (mu @ r if baseline is None else baseline))


def sampled(y, credit):
    """Weights of outcomes in a group's mean loss."""
    return np.bincount(y, credit, Y) / G


@for_all(distributions(), values(), values())
def test_the_group_mean_climbs_the_likelihood_weighted_by_the_lead_over_the_mean(mu, r, logits):
    """E of a group's gradient is (1 - 1/G) grad E_mu[(r - E_mu r) log pi], mu != pi."""
    drawn = estimators.every_sample(jnp.asarray(mu), 3)
    scores = jnp.eye(Y) - jax.nn.softmax(jnp.asarray(logits))[None]

    def one(y):
        return (advantages.centered(jnp.asarray(r)[y])[:, None] * scores[y]).mean(0)

    expected = drawn.probs @ jax.vmap(one)(drawn.outcomes)
    climbs = direction(logits, weights_of(mu, r))
    np.testing.assert_allclose(expected, (1 - 1 / 3) * climbs, atol=EPS)


@for_all(members, binary(), values(), steps)
def test_no_balanced_step_on_binary_rewards_lowers_the_reward(y, r, logits, rate):
    """Whoever drew the samples, however large the step: J(pi') >= J(pi), sample by sample."""
    credit = np.asarray(advantages.centered(jnp.asarray(r[y])))
    after = logits + rate * np.asarray(direction(logits, sampled(y, credit)))
    assert policy(after) @ r >= policy(logits) @ r - EPS


def test_refuted_an_unbalanced_step_is_as_safe():
    """One success imitated: the others' probability falls with it."""
    pi, r = np.array([0.9, 0.05, 0.05, 1e-9]), np.array([1.0, 1.0, 0.0, 0.0])
    one = np.array([1] * G)
    after = policy(np.log(pi) + np.asarray(direction(np.log(pi), sampled(one, np.ones(G)))))
    np.testing.assert_allclose([pi @ r, after @ r], [0.95, 0.9125], atol=5e-4)


@for_all(distributions(), binary(), values())
def test_with_balance_and_coverage_binary_rewards_are_learned_from_one_sampler(mu, r, logits):
    """pi_t is proportional to pi_0 exp(t w): J rises at every step, to 1."""
    weights = weights_of(mu, r)
    np.testing.assert_allclose(climbed(logits, weights, 1.0, 1) - logits, weights, atol=EPS)
    np.testing.assert_allclose(direction(logits, weights), weights, atol=EPS)
    early, late = climbed(logits, weights, 1.0, 3), logits + 1e4 * weights
    np.testing.assert_allclose(policy(early), policy(logits + 3 * weights), atol=EPS)
    seen = [policy(logits + t * weights) @ r for t in range(20)]
    assert np.all(np.diff(seen) >= -EPS)
    assert policy(late) @ r > 1 - 1e-6


def test_refuted_balance_and_coverage_suffice_for_other_rewards():
    """The limit is the outcome of largest mu (r - J), not of largest r: J falls .986 -> .6."""
    mu, r = np.array([0.6, 0.1, 0.3]), np.array([0.6, 1.0, 0.0])
    weights, start = weights_of(mu, r), np.log([0.01, 0.98, 0.01])
    np.testing.assert_allclose(weights, [0.084, 0.054, -0.138], atol=1e-12)
    np.testing.assert_allclose(policy(start) @ r, 0.986)
    np.testing.assert_allclose(policy(start + 2000 * weights) @ r, 0.6, atol=1e-9)


@for_all(distributions(), values(low=0), eighths(1, 8))
def test_below_every_reward_the_limit_is_the_sampler_tilted(mu, r, below):
    """b < min r: the objective is concave, its maximum mu (r - b) / (J - b)."""
    b = r.min() - below
    weights, value = weights_of(mu, r, b), mu @ r
    limit = weights / weights.sum()
    np.testing.assert_allclose(direction(np.log(limit), weights), 0, atol=EPS)
    gained = (mu @ (r - value) ** 2) / (value - b)
    np.testing.assert_allclose(limit @ r, value + gained, atol=EPS)
    logits = climbed(np.zeros(Y), weights, 1 / weights.sum(), 400)
    np.testing.assert_allclose(policy(logits), limit, atol=2e-3)


def test_refuted_a_baseline_above_the_mean_is_safe_where_the_sampler_never_goes():
    """The third outcome is never drawn and never right; b = .9 > J(mu) = .5 drives pi there."""
    mu, r = np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])
    start = np.log([0.2, 0.2, 0.6])
    assert policy(climbed(start, weights_of(mu, r, 0.9), 1.0, 400)) @ r < 1e-6
    assert policy(climbed(start, weights_of(mu, r, 0.5), 1.0, 400)) @ r > 1 - 1e-6


FEATURES = np.array([0.5, 1.0, 0.0])


def test_refuted_balance_and_coverage_suffice_with_shared_parameters():
    """Logits theta phi(y), binary rewards, every outcome drawn: J falls to 0.

    On policy the same steps, from a policy as far off, climb to where Cov_pi(r, phi) = 0.
    """
    mu, r = np.array([0.6, 0.1, 0.3]), np.array([1.0, 0.0, 0.0])
    slope = FEATURES @ weights_of(mu, r)
    np.testing.assert_allclose(slope, 0.06, atol=1e-12)
    np.testing.assert_allclose(policy(1e4 * slope * FEATURES) @ r, 0, atol=1e-9)
    theta = 4.0
    assert policy(theta * FEATURES) @ r < 0.12
    for _ in range(1000):
        pi = policy(theta * FEATURES)
        theta += FEATURES @ weights_of(pi, r)
    pi = policy(theta * FEATURES)
    np.testing.assert_allclose(FEATURES @ weights_of(pi, r), 0, atol=1e-9)
    np.testing.assert_allclose(pi @ r, 1 / 3, atol=1e-9)  # the most that this family reaches


def tree_policy(logits):
    """Probabilities [2, 2] of two tokens, the logits of the first and of the second by the first."""
    return policy(logits[0])[:, None] * np.array([policy(x) for x in logits[1:]])


@jax.jit
@jax.grad
def tree_direction(logits, weights):
    """Returns the gradient of sum w(h, c) (log pi(h) + log pi(c | h)) in the logits, [3, 2]."""
    first, *second = map(jax.nn.log_softmax, logits)
    return (weights * (first[:, None] + jnp.stack(second))).sum()


R = np.array([[1.0, 0.0], [1.0, 0.0]])
SAMPLER = np.array([[0.45, 0.05], [0.05, 0.45]])
FLIPPED = np.log(np.array([[0.5, 0.5], [0.1, 0.9], [0.9, 0.1]]))


def test_refuted_no_balanced_step_by_token_lowers_the_reward():
    """pi errs where mu does not: the first token follows mu's successes, and J falls at first."""
    weights = SAMPLER * (R - (SAMPLER * R).sum())
    rate, before = 1e-6, (tree_policy(FLIPPED) * R).sum()
    after = (tree_policy(FLIPPED + rate * tree_direction(FLIPPED, weights)) * R).sum()
    np.testing.assert_allclose((after - before) / rate, -0.0431, atol=1e-4)


@for_all(distributions(4), binary(4), values(6), examples=10)
def test_by_token_balance_and_coverage_end_at_the_successes(mu, r, start):
    """Tables for each prefix, one sampler, binary rewards: J tends to 1 all the same."""
    mu, r, logits = mu.reshape(2, 2), r.reshape(2, 2), start.reshape(3, 2)
    weights = mu * (r - (mu * r).sum())
    scale = 1 / np.abs(weights).max()
    for _ in range(2000):
        logits = logits + scale * np.asarray(tree_direction(logits, weights))
    assert (tree_policy(logits) * r).sum() > 0.95
