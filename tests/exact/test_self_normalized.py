"""Properties 8-12: self-normalised importance sampling, and the effective sample size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, estimators, weights
from tests.exact.draws import EPS, Y, distributions, for_all, moments_of, multinomial, values

pytestmark = pytest.mark.slow

ONES = np.ones(Y, bool)
three, one = (moments_of(estimators.self_normalized_terms, n) for n in (3, 1))


@for_all(distributions(), distributions(), values(), st.floats(-3, 3))
def test_self_normalized_stays_in_range_and_follows_shifts(pi, mu, f, shift):
    """Property 8: within [min f, max f]; f + c gives the estimate + c.

    At n = 1 the bias is J(mu) - J(pi). Theorems SelfNormalized.snis_between,
    SelfNormalized.snis_shift, SelfNormalized.snis_scale, SelfNormalized.snis_one_sample.
    """
    estimates, _ = three(pi, mu, f)
    shifted, _ = three(pi, mu, f + shift)
    assert f.min() - EPS <= estimates.min()
    assert estimates.max() <= f.max() + EPS
    np.testing.assert_allclose(shifted, estimates + shift, atol=EPS)
    scaled, _ = three(3.5 * pi, mu, f)
    np.testing.assert_allclose(scaled, estimates, atol=EPS)
    np.testing.assert_allclose(one(pi, mu, f)[1].bias, mu @ f - pi @ f, atol=EPS)


@for_all(distributions(), distributions(), values())
def test_self_normalized_error_bounds(pi, mu, f):
    """Property 9: MSE <= (2/n)(V + o^2 chi2); |bias| <= sqrt(2 chi2 (V + o^2 chi2)) / n.

    Theorems SelfNormalized.snis_mse, SelfNormalized.snis_bias, SelfNormalized.snis_bias_sqrt.
    """
    _, moments = three(pi, mu, f)
    chi2 = max(bounds.chi_square_divergence(pi, mu), 0.0)
    mass = mu @ ((pi / mu) ** 2 * (f - pi @ f) ** 2)
    args = (mass, np.ptp(f), chi2, 3)
    assert moments.mse <= bounds.self_normalized_mse_bound(*args) + EPS
    assert abs(moments.bias) <= bounds.self_normalized_bias_bound(*args) + 1e-7


def test_weights_that_all_vanish_leave_the_plain_mean():
    """Within [min f, max f] there, too, as `proofs/estimators.md` promises; no NaN, no gradient."""
    f = jnp.array([1.0, 0.0, 5.0])
    terms = estimators.self_normalized_terms(jnp.zeros(3), f)
    np.testing.assert_array_equal(terms, f)
    slope = jax.grad(lambda w: estimators.self_normalized_terms(w, f).sum())(jnp.zeros(3))
    np.testing.assert_array_equal(slope, 0)


def multinomial_bias(pi, mu, f, n):
    """Bias of n samples of three outcomes, from their counts: exact, with 20301 terms at n = 200."""
    drawn, law = multinomial(n, mu)
    outcomes = (np.arange(n) >= np.cumsum(drawn, axis=1)[:, :2, None]).sum(1)
    ratio = (pi / mu)[outcomes]
    estimates = jax.vmap(estimators.self_normalized_terms)(ratio, f[outcomes]).mean(-1)
    return law @ estimates - pi @ f


@pytest.mark.parametrize(
    ("pi", "mu", "f"),
    [
        ((0.2, 0.3, 0.5), (0.5, 0.3, 0.2), (1.0, 0.0, 2.0)),
        ((0.7, 0.2, 0.1), (0.4, 0.4, 0.2), (0.0, 1.0, -1.0)),
        ((0.1, 0.1, 0.8), (0.3, 0.4, 0.3), (1.0, 0.5, 0.0)),
    ],
)
def test_self_normalized_bias_tends_to_its_limit(pi, mu, f):
    """Property 10: n bias -> -E_mu[rho^2 (f - J)], and halves its distance as n doubles."""
    pi, mu, f = map(np.asarray, (pi, mu, f))
    limit = -mu @ ((pi / mu) ** 2 * (f - pi @ f))
    distances = [abs(n * multinomial_bias(pi, mu, f, n) - limit) for n in (100, 200)]
    assert distances[1] < 0.05 * abs(limit)
    assert distances[1] < 0.55 * distances[0]


positive = st.lists(st.integers(1, 40), min_size=Y, max_size=Y).map(np.array)
ess = jax.jit(weights.ess)


@for_all(positive, st.floats(-300, 300))
def test_effective_sample_size_between_one_and_n_and_its_renyi_neighbours(w, log_scale):
    """Property 11: 1 <= ESS <= n, = n / (1 + CV^2), whatever the scale.

    Property 12: 1 / max wbar <= ESS <= exp H(wbar). Theorems Importance.ess_ge1,
    Importance.ess_le_n, Importance.ess_scale, Importance.ess_ge_inv_max.
    """
    size = ess(np.log(w) + log_scale, ONES)
    assert 1 - EPS <= size <= Y + EPS
    np.testing.assert_allclose(size, Y / (1 + w.var() / w.mean() ** 2), rtol=1e-9)
    np.testing.assert_allclose(weights.ess_fraction(jnp.log(w), ONES), size / Y, rtol=1e-9)
    wbar = w / w.sum()
    assert 1 / wbar.max() <= size + EPS
    assert size <= np.exp(-(wbar * np.log(wbar)).sum()) + EPS


def test_effective_sample_size_at_its_ends():
    """Property 11: n iff all weights are equal, 1 iff one is not 0; infinite ones share it all.

    Theorems Importance.ess_eq1, Importance.ess_eqn.
    """
    np.testing.assert_allclose(ess(np.full(Y, 3.0), ONES), Y, rtol=1e-12)
    assert ess(np.log([2.0, 2.0, 2.0, 2.001]), ONES) < Y
    assert ess(np.array([5.0, -np.inf, -np.inf, -np.inf]), ONES) == 1
    assert ess(np.log([1.0, 1e-3, 1e-9, 1e-9]), ONES) > 1
    assert ess(np.array([np.inf, 3.0, np.inf, 0.0]), ONES) == 2
    assert ess(np.full(Y, -np.inf), ONES) == 0
    assert ess(np.zeros(Y), ~ONES) == 0
    assert ess(np.zeros(Y), np.array([True, True, False, False])) == 2


def test_refuted_effective_sample_size_without_normalising():
    """Property 11: 1 / sum rho^2 of unnormalised weights is 1/n on policy, where nothing is lost.

    Theorem Importance.ess_normalised.
    """
    rho = np.ones(Y)
    assert 1 / (rho**2).sum() == 1 / Y
    assert ess(np.log(rho), ONES) == Y
