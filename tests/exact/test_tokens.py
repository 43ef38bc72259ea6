"""Properties 23-25 and 28: sequences of tokens, their ratios, traces and surrogates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, ratios, traces
from ogrpo.core.objectives import TokenBatch, token_loss
from ogrpo.core.surrogates import ratio_surrogate
from tests.exact.draws import EPS, caps, distributions, eighths, for_all, values

pytestmark = pytest.mark.slow

V, T = 3, 2
SEQUENCES = np.array([(a, b) for a in range(V) for b in range(V)])
MASK = np.ones((V * V, T), bool)


def token_log_probs(first, second):
    """[V*V, T] log-probs of every sequence under P(y1) and P(y2|y1)."""
    a, b = SEQUENCES.T
    return jnp.stack([jnp.log(jnp.asarray(first))[a], jnp.log(jnp.asarray(second))[a, b]], -1)


def joint(log_probs):
    return np.exp(np.asarray(log_probs).sum(-1))


independent = st.tuples(distributions(V), distributions(V))


def independent_log_probs(pair):
    return token_log_probs(pair[0], np.repeat(pair[1][None], V, 0))


@for_all(independent, independent)
def test_chi_square_and_overlaps_multiply_over_independent_tokens(new, old):
    """Property 23: 1 + chi2_T = prod (1 + chi2_t); E_mu[prod min(1, rho_t)] = prod (1 - TV_t).

    Theorems Mixture.tokens_m2, Mixture.tokens_min.
    """
    log_probs, behavior = independent_log_probs(new), independent_log_probs(old)
    pi, mu = joint(log_probs), joint(behavior)
    factors = [1 + bounds.chi_square_divergence(p, q) for p, q in zip(new, old, strict=True)]
    second_moment = 1 + bounds.chi_square_divergence(pi, mu)
    np.testing.assert_allclose(second_moment, np.prod(factors), rtol=1e-9)
    delta = ratios.log_ratio(log_probs, behavior, MASK)
    trace = traces.trace_weight(delta, MASK, decay=1.0, cap=1.0)[:, -1]
    overlaps = [1 - bounds.total_variation(p, q) for p, q in zip(new, old, strict=True)]
    np.testing.assert_allclose(mu @ trace, np.prod(overlaps), atol=EPS)


policies = st.tuples(distributions(V), distributions(V, V))


@for_all(policies, policies, values(V * V))
def test_prefix_ratios_are_unbiased_for_prefix_rewards(new, old, r):
    """Per-decision: rho of the prefix suffices for what the prefix decides; the whole for the rest."""
    log_probs, behavior = token_log_probs(*new), token_log_probs(*old)
    prefix = ratios.exp_ratio(ratios.prefix_log_ratio(log_probs, behavior, MASK))
    whole = ratios.exp_ratio(ratios.sequence_log_ratio(log_probs, behavior, MASK))
    pi, mu, first = joint(log_probs), joint(behavior), r[SEQUENCES[:, 0]]
    np.testing.assert_allclose(mu @ (prefix[:, 0] * first), pi @ first, atol=1e-8)
    np.testing.assert_allclose(mu @ (prefix[:, 1] * r), pi @ r, atol=1e-8)
    np.testing.assert_allclose(whole, np.repeat(prefix[:, -1:], T, 1), rtol=1e-9)


def policy_log_probs(logits):
    return token_log_probs(jax.nn.softmax(logits[0]), jax.nn.softmax(logits[1:], axis=-1))


@for_all(values(V + 1, V), values(V * V))
def test_token_surrogate_has_the_sequence_gradient_on_policy(logits, r):
    """Property 24: at pi = mu the token-sum surrogate's gradient is grad J."""
    behavior = policy_log_probs(logits)
    batch = TokenBatch(jnp.repeat(r[:, None], T, 1), jnp.asarray(MASK), behavior)

    def surrogate(x):
        losses = token_loss(policy_log_probs(x), batch, surrogate_fn=ratio_surrogate)
        return -joint(behavior) @ losses.sum(-1)

    token = jax.grad(surrogate)(jnp.asarray(logits))
    sequence = jax.grad(lambda x: jnp.exp(policy_log_probs(x).sum(-1)) @ r)(jnp.asarray(logits))
    np.testing.assert_allclose(token, sequence, atol=EPS)


def token_surrogate(new, old, r):
    rho = np.exp(ratios.log_ratio(new, old, MASK[: len(new)]))
    return joint(old) @ ((rho - 1).sum(-1) * r)


@for_all(policies, policies, values(V * V, low=0, high=8))
def test_token_surrogate_is_second_order_in_the_distance(new, old, r):
    """Property 24: |J(pi) - J(mu) - L_tok| <= T (T - 1) zeta^2, zeta the largest prefix TV.

    Theorems TokenSurrogate.token_surrogate_gap, TokenSurrogate.token_surrogate_bound.
    """
    log_probs, behavior = token_log_probs(*new), token_log_probs(*old)
    tvs = [bounds.total_variation(new[0], old[0])]
    tvs += [bounds.total_variation(new[1][a], old[1][a]) for a in range(V)]
    error = (joint(log_probs) - joint(behavior)) @ r - token_surrogate(log_probs, behavior, r)
    assert abs(error) <= bounds.token_surrogate_bound(T, max(tvs)) + EPS
    for a in range(V):  # from a prefix, with one token to go: nothing is lost
        p, q, after = new[1][a], old[1][a], r[SEQUENCES[:, 0] == a]
        gap = (p - q) @ after - q @ ((p / q - 1) * after)
        assert abs(gap) <= bounds.token_surrogate_bound(1, max(tvs)) + EPS


def test_token_surrogate_bound_is_attained_at_two_tokens():
    """Property 24: XOR reward, prefixes moved by zeta: TokenSurrogate.token_surrogate_attained."""
    zeta = 0.2

    def binary(first, second):
        p = np.array([[1 - first, first]])
        q = np.stack([1 - np.array(second), np.array(second)], -1)
        return np.log(np.stack([np.repeat(p[0], 2), q.ravel()], -1))

    old = binary(0.5, (0.5, 0.5))
    new = binary(0.5 + zeta, (0.5 - zeta, 0.5 + zeta))
    r = np.array([0.0, 1.0, 0.0, 1.0])
    error = (joint(new) - joint(old)) @ r - token_surrogate(new, old, r)
    assert error == pytest.approx(float(bounds.token_surrogate_bound(T, zeta)))


@for_all(distributions(), distributions(), values(), caps)
def test_vtrace_bandit_fixed_point(pi, mu, r, cap):
    """Property 25: V = E[min(c, rho) r] / E[min(c, rho)], the value of min(c mu, pi) normalised."""
    policy = np.minimum(cap * mu, pi)
    fixed = (policy / policy.sum()) @ r
    arrays = (jnp.log(pi / mu)[:, None], jnp.asarray(r)[:, None], jnp.full((4, 1), fixed))
    knobs = {"discount": 1.0, "decay": 1.0, "ratio_cap": cap, "trace_cap": 1.0}
    targets, advantages = traces.vtrace(*arrays, jnp.zeros(4), jnp.ones((4, 1), bool), **knobs)
    np.testing.assert_allclose(mu @ targets[:, 0], fixed, atol=EPS)
    np.testing.assert_allclose(mu @ advantages[:, 0], 0, atol=EPS)


def length_normalised(pi, mu, lengths):
    """[Y] rho^{1/T} of sequences of unlike lengths, each log-prob spread evenly over its tokens."""
    mask = np.arange(9) < lengths[:, None]
    new, old = (jnp.asarray((np.log(p) / lengths)[:, None] * mask) for p in (pi, mu))
    return np.exp(ratios.mean_log_ratio(new, old, mask))[:, 0]


def mass_bound(pi, mu, lengths):
    return bounds.normalized_ratio_bound(*map(jnp.asarray, (pi, mu, lengths.astype(float))))


@for_all(distributions(), distributions(), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_the_length_normalised_ratio_has_the_mass_of_its_bound(pi, mu, lengths):
    """Property 28: GSPO: E_mu[rho^{1/T}] <= 1 + E_pi[1/T] - E_mu[1/T], with each sequence's length.

    At most 1 for one length, so that it is no importance weight. Theorem
    Mixture.normalised_ratio_mass.
    """
    for each in (np.array(lengths), np.full(4, lengths[0])):
        bound = mass_bound(pi, mu, each)
        assert mu @ length_normalised(pi, mu, each) <= bound + EPS
    assert bound == pytest.approx(1)


def test_refuted_the_length_normalised_ratio_loses_mass_whatever_the_lengths():
    """Property 28: mu = (.5, .5), pi = (.8, .2), lengths 1 and 2: 1.116, by `mean_log_ratio`.

    Theorem Mixture.normalised_ratio_gains.
    """
    pi, mu, lengths = np.array([0.8, 0.2]), np.array([0.5, 0.5]), np.array([1, 2])
    mass = mu @ length_normalised(pi, mu, lengths)
    assert mass == pytest.approx(1.116, abs=1e-3)
    assert mass <= mass_bound(pi, mu, lengths)


@for_all(policies, policies, values(V * V, low=0, high=8), eighths(4, 24))
def test_truncating_token_ratios_loses_no_more_than_its_tail(new, old, r, cap):
    """0 <= J - E_mu[prod min(rho_t, c) r] <= 1 - (1 - zeta_c)^T.

    Theorem TokenSurrogate.token_truncation_bias.
    """
    log_probs, behavior = token_log_probs(*new), token_log_probs(*old)
    kept = np.minimum(np.exp(ratios.log_ratio(log_probs, behavior, MASK)), cap).prod(-1)
    lost = joint(log_probs) @ r - joint(behavior) @ (kept * r)
    tails = [old[0] @ np.maximum(new[0] / old[0] - cap, 0)]
    tails += [old[1][a] @ np.maximum(new[1][a] / old[1][a] - cap, 0) for a in range(V)]
    assert -EPS <= lost <= bounds.token_truncation_bound(T, max(tails)) + EPS
