"""Properties 1-5: importance sampling, truncated and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, estimators, weights
from tests.exact.draws import EPS, Y, caps, distributions, for_all, moments_of, values

pytestmark = pytest.mark.slow

SAMPLES = 3
importance_moments = moments_of(estimators.importance_terms, SAMPLES)


@for_all(distributions(), distributions(least=0), values())
def test_importance_sampling_is_unbiased_on_the_support(pi, mu, f):
    """Property 1: E_mu[rho f] = E_pi[f] if pi << mu, else the sum over supp mu.

    Theorems Importance.is_unbiased, Importance.is_unbiased_n, Importance.is_unsupported.
    """
    _, moments = importance_moments(pi, mu, f)
    supported = (pi * f)[mu > 0].sum()
    one = estimators.importance_terms(bounds.density_ratio(pi, mu), jnp.asarray(f))
    np.testing.assert_allclose([mu @ one, moments.mean], supported, atol=EPS)


@for_all(distributions(), distributions(), values())
def test_importance_sampling_variance_is_the_second_moment(pi, mu, f):
    """Property 2: n Var(IS) = E_mu[rho^2 f^2] - J^2; f = 1 gives chi^2(pi||mu).

    Theorems Importance.is_variance, Importance.is_mse, Importance.ratio_variance.
    """
    for g in (f, np.ones(Y)):
        n_variance = SAMPLES * importance_moments(pi, mu, g)[1].variance
        expected = (pi**2 / mu * g**2).sum() - (pi @ g) ** 2
        np.testing.assert_allclose(n_variance, expected, atol=EPS * (1 + expected))
    np.testing.assert_allclose(expected, bounds.chi_square_divergence(pi, mu), rtol=1e-8, atol=EPS)


@jax.jit
def truncated_mean(pi, mu, f, cap):
    return mu @ estimators.truncated_terms(bounds.density_ratio(pi, mu), f, cap=cap)


@for_all(distributions(), distributions(), values(), caps)
def test_truncation_bias_is_the_excess(pi, mu, f, cap):
    """Property 3: bias = -E_mu[(rho - tau)_+ f], at most max|f| (1 + chi^2) / (4 tau).

    And <= 0 for f >= 0. Property 4: E_mu[(rho - 1)_+] = TV and E_mu[min(1, rho)] = 1 - TV. Theorems
    Importance.truncation_bias, Importance.truncation_bias_bound, Importance.truncation_bias_le0,
    Divergence.tv_pos_part, Divergence.tv_min.
    """
    excess = mu * np.maximum(pi / mu - cap, 0)
    bias = truncated_mean(pi, mu, f, cap) - pi @ f
    chi2 = bounds.chi_square_divergence(pi, mu)
    np.testing.assert_allclose(bias, -(excess @ f), atol=EPS)
    assert abs(bias) <= abs(f).max() * excess.sum() + EPS
    assert excess.sum() <= bounds.truncation_bias_bound(1.0, chi2, cap) + EPS
    assert truncated_mean(pi, mu, abs(f), cap) <= pi @ abs(f) + EPS
    tv = bounds.total_variation(pi, mu)
    kept = truncated_mean(pi, mu, np.ones(Y), 1.0)
    np.testing.assert_allclose(kept, 1 - tv, atol=EPS)
    np.testing.assert_allclose(mu @ np.maximum(pi / mu - 1, 0), tv, atol=EPS)


@for_all(distributions(), distributions(), values(), caps, st.floats(0, 1))
def test_two_sided_clip_bias_is_gain_minus_excess(pi, mu, f, high, fraction):
    """Property 5: bias = E[(l - rho)_+ f] - E[(rho - u)_+ f]; the weight agrees with the terms.

    Theorem Importance.two_sided_clip_bias.
    """
    low = fraction * high
    ratio = pi / mu
    terms = estimators.clipped_terms(jnp.asarray(ratio), f, low=low, high=high)
    expected = mu @ (np.maximum(low - ratio, 0) * f) - mu @ (np.maximum(ratio - high, 0) * f)
    np.testing.assert_allclose(mu @ terms - pi @ f, expected, atol=EPS)
    weight = weights.truncated_weight(jnp.log(ratio), np.ones(Y, bool), cap=high, floor=low)
    np.testing.assert_allclose(weight * f, terms, rtol=1e-9, atol=EPS)


@for_all(distributions(), distributions(), values(low=0), st.floats(0.1, 0.9), st.floats(1.1, 3))
def test_masking_loses_more_than_truncating(pi, mu, f, low, high):
    """IcePop's bias is -E_mu[rho f; outside]: below truncation's, for f >= 0 and the same cap."""
    ratio, everything = jnp.log(pi / mu), np.ones(Y, bool)
    masked = mu @ (weights.masked_weight(ratio, everything, cap=high, floor=low) * f)
    outside = (pi / mu < low) | (pi / mu > high)
    np.testing.assert_allclose(masked, pi @ (f * ~outside), atol=EPS)
    assert masked <= truncated_mean(pi, mu, f, high) + EPS
