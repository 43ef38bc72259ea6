"""Property 26 and section 3: what a replay buffer costs, and what a sample is worth."""

import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, estimators
from tests.exact.draws import EPS, distributions, eighths, for_all, moments_of, values, varied

pytestmark = pytest.mark.slow


@for_all(distributions(), distributions(3, 4), distributions(3))
def test_a_buffer_is_no_worse_than_its_average_policy(pi, policies, weights):
    """Property 26: 1 + chi2(pi || sum w mu) <= sum w (1 + chi2_j).

    Theorems Mixture.mixture_m2, Mixture.mixture_chi2.
    """
    mixture = 1 + bounds.chi_square_divergence(pi, weights @ policies)
    upper = bounds.mixture_second_moment(*map(jax.numpy.asarray, (pi, policies, weights)))
    assert mixture <= upper + EPS
    parts = [bounds.chi_square_divergence(pi, mu) for mu in policies]
    assert mixture - 1 <= weights @ np.array(parts) + EPS


variances = eighths(1, 64)
sizes = st.integers(1, 20)


@for_all(variances, variances, sizes, sizes)
def test_stale_samples_help_iff_the_criterion_holds(fresh_variance, stale_variance, fresh, stale):
    """Property 26: the plain mean's variance falls iff sigma1^2 / sigma0^2 < 2 + m / N.

    Theorem Mixture.staleness_iff.
    """
    before = fresh_variance / fresh
    after = (fresh * fresh_variance + stale * stale_variance) / (fresh + stale) ** 2
    if abs(after - before) > 1e-12:
        helps = bounds.stale_samples_help(fresh_variance, stale_variance, fresh, stale)
        assert bool(helps) == (after < before)


@jax.jit
def pooled(pi, mu, f, weight):
    """Exact moments of two fresh samples, of two stale ones, and of both, the fresh at `weight`."""
    fresh, stale = estimators.every_sample(pi, 2), estimators.every_sample(mu, 2)
    plain = f[fresh.outcomes].mean(-1)
    weighed = jax.vmap(lambda y: estimators.importance_terms((pi / mu)[y], f[y]))(stale.outcomes)
    both = weight * plain[:, None] + (1 - weight) * weighed.mean(-1)[None]
    chance = fresh.probs[:, None] * stale.probs[None]
    sides = ((plain, fresh.probs), (weighed.mean(-1), stale.probs), (both.ravel(), chance.ravel()))
    return [estimators.exact_moments(*side, pi @ f) for side in sides]


@for_all(distributions(), distributions(), varied())
def test_inverse_variance_weighting_never_hurts(pi, mu, f):
    """Section 3: the best linear combination is at least as good as the fresh samples alone.

    Theorems Mixture.inverse_variance_helps, Mixture.pooled_variance.
    """
    fresh, stale, plain = pooled(pi, mu, f, 0.5)
    _, _, best = pooled(pi, mu, f, stale.variance / (fresh.variance + stale.variance))
    np.testing.assert_allclose([stale.bias, best.bias], 0, atol=EPS)
    np.testing.assert_allclose(plain.variance, (fresh.variance + stale.variance) / 4, atol=EPS)
    assert best.variance <= min(fresh.variance, stale.variance, plain.variance) + EPS


importance_moments = moments_of(estimators.importance_terms, 3)


@for_all(distributions(), distributions(), values(low=0, high=8))
def test_effective_samples_bound_the_error(pi, mu, r):
    """Section 3: MSE(IS) <= 1 / n_eff for r in [0, 1], and `sample_size` inverts it.

    Theorem Importance.is_sample_complexity.
    """
    chi2, n = bounds.chi_square_divergence(pi, mu), 3
    _, moments = importance_moments(pi, mu, r)
    assert moments.mse <= 1 / bounds.effective_samples(n, chi2) + EPS
    root = np.sqrt(1 / bounds.effective_samples(n, chi2))
    np.testing.assert_allclose(bounds.sample_size(chi2, root), n)


@pytest.mark.parametrize("smallest", [1e2, 1e6, 1e12])
def test_refuted_kl_bounds_the_variance(smallest):
    """The proposal's theorem 3: p, q = p e^{-delta/p} has KL <= delta and chi2 >= M for any M.

    Theorem Divergence.kl_does_not_bound_chi2.
    """
    delta = 0.1
    p = delta / (2 * np.log(smallest))
    q = p * np.exp(-delta / p)
    pi, mu = np.array([p, 1 - p]), np.array([q, 1 - q])
    assert bounds.kl_divergence(pi, mu) <= delta
    assert bounds.chi_square_divergence(pi, mu) >= smallest


@jax.jit
def clip_error(mu, ratio, r, eps, n):
    """Exact MSE of the mean of n two-sided clipped terms, the clip [1 - eps, 1 + eps]."""
    low = jax.numpy.maximum(1 - eps, 0)
    terms = estimators.clipped_terms(ratio, r, low=low, high=1 + eps)
    moments = estimators.exact_moments(terms, mu, mu @ (ratio * r))
    return moments.bias**2 + moments.variance / n


widths = np.linspace(0, 1, 2001)
clip_errors = jax.jit(jax.vmap(clip_error, in_axes=(None, None, None, 0, None)))
UNRELATED = ((0.5, 0.5, 1.5, 1.5), (0.0, 1.0, 0.0, 1.0), 0.0)
"""Ratios, rewards that are independent of them, and a, by which the best width grows with n."""


@pytest.mark.parametrize(
    ("ratio", "r", "a", "n"),
    [
        ((0.5, 1.5), (0.0, 1.0), 0.5, 4),
        ((0.5, 1.5), (0.0, 10.0), 0.5, 4),  # another unit
        ((0.1, 1.9), (0.0, 1.0), 0.9, 3),
        ((0.75, 1.25), (0.0, 1.0), 0.25, 3),
        *((*UNRELATED, n) for n in (1, 10, 1000)),
    ],
)
def test_refuted_clip_width_from_two_variances(ratio, r, a, n):
    """The proposal's theorem 2: eps* = sqrt(Var r / Var rho), the truth is max(0, (n a - 1) / (n + 1)).

    On two points rho = 1 -+ a, whatever the unit of r; and 0 at every n where r ignores rho.
    """
    mu, ratio, r = np.full(len(r), 1 / len(r)), np.array(ratio), np.array(r)
    proposed = np.sqrt((mu @ (r - mu @ r) ** 2) / bounds.chi_square_divergence(mu * ratio, mu))
    truth = max(0.0, (n * a - 1) / (n + 1))
    least = clip_errors(mu, ratio, r, widths, n).min()
    assert clip_error(mu, ratio, r, truth, n) <= least + 1e-12
    assert clip_error(mu, ratio, r, proposed, n) > least + 1e-4
