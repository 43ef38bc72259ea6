"""Properties 6 and 7: the truncation that minimises the mean squared error."""

import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.optimize import brentq

from ogrpo.core import bounds, estimators
from tests.exact.draws import EPS, Y, binary, caps, distributions, for_all, multinomial, values

pytestmark = pytest.mark.slow

optimal = jax.jit(estimators.optimal_clip)
counts = st.integers(1, 60).map(float)


def relative_excess(ratio, f, mu, tau):
    return mu @ (np.maximum(ratio - tau, 0) * f)


@for_all(distributions(), distributions(), binary(), counts)
def test_optimal_clip_solves_the_fixed_point_and_beats_a_dense_grid(pi, mu, r, n):
    """Property 6: for r in {0, 1}, tau = J + (n - 1) E_mu[(rho - tau)_+ r], of the least error.

    As r^2 = r, the bound of the error is the error. Theorems OptimalTruncation.fixed_point_exists,
    OptimalTruncation.optimal_clip_fixed_point, OptimalTruncation.mse_binary.
    """
    best = optimal(pi / mu, r, n, mu)
    expected = pi @ r + (n - 1) * relative_excess(pi / mu, r, mu, best.tau)
    np.testing.assert_allclose(best.tau, expected, rtol=1e-8)
    upper, mse = upper_on_grid(pi / mu, r, n, mu, (pi / mu).max() * np.linspace(0, 1.02, 801))
    np.testing.assert_allclose(upper, mse, atol=EPS)
    assert best.mse <= mse.min() + 1e-12


@for_all(distributions(), distributions(), binary(), counts, values(2, low=0, high=80))
def test_the_residual_of_the_fixed_point_grows_as_fast_as_its_cap(pi, mu, r, n, caps):
    """t - s <= G(t) - G(s) for s <= t, G(t) = t - J - (n - 1) E_mu[(rho - t)_+ r]: one root.

    Theorems OptimalTruncation.residual_increasing, OptimalTruncation.fixed_point_unique.
    """
    low, high = np.sort(caps)
    tails = [relative_excess(pi / mu, r, mu, cap) for cap in (low, high)]
    assert high - low <= (high - low) - (n - 1) * (tails[1] - tails[0]) + EPS


@for_all(distributions(), distributions(), binary(), counts)
def test_optimal_clip_grows_with_n_and_no_faster_than_its_root(pi, mu, r, n):
    """Property 6: nondecreasing in n, below (J + sqrt(J^2 + (n - 1) M2)) / 2.

    Theorems OptimalTruncation.fixed_point_monotone, OptimalTruncation.fixed_point_rate.
    """
    taus = [optimal(pi / mu, r, m, mu).tau for m in (n, n + 1, 10 * n)]
    assert np.all(np.diff(taus) >= -EPS)
    assert taus[0] <= bounds.optimal_clip_bound(pi @ r, (pi**2 / mu) @ r**2, n) + EPS


@for_all(distributions(), distributions(), values(Y, 2), counts)
def test_optimal_clip_of_vectors_beats_a_dense_grid(pi, mu, f, n):
    """Property 7: for signed vectors the error is not unimodal, and the scan still finds the least."""
    best = optimal(pi / mu, f, n, mu)
    error = jax.vmap(lambda cap: estimators.truncation_error(cap, pi / mu, f, n, mu).mse)
    assert best.mse <= error((pi / mu).max() * np.linspace(0, 1.02, 801)).min() + 1e-12
    np.testing.assert_allclose(best.mse, best.variance + best.bias @ best.bias, atol=EPS)


@jax.jit
def upper_on_grid(ratios, r, n, mu, caps):
    """The MSE's upper bound in which r^2 is replaced by r, and the MSE, at every cap."""

    def at(cap):
        exact = estimators.truncation_error(cap, ratios, r, n, mu)
        least = jax.numpy.minimum(ratios, cap)
        upper = exact.bias**2 + (mu @ (least**2 * r) - (mu @ (least * r)) ** 2) / n
        return upper, exact.mse

    return jax.vmap(at)(caps)


@for_all(distributions(), distributions(), values(low=0, high=8), counts)
def test_the_fixed_point_minimises_the_bound_of_fractional_rewards(pi, mu, r, n):
    """For r in [0, 1], r^2 <= r: the bound is above the MSE at each cap, least at the fixed point.

    Theorems OptimalTruncation.mse_le_upper, OptimalTruncation.fixed_point_least_upper.
    """
    ratio = pi / mu

    def residual(tau):
        return tau - pi @ r - (n - 1) * relative_excess(ratio, r, mu, tau)

    root = brentq(residual, 0.0, ratio.max() + 1)
    caps = np.append(ratio.max() * np.linspace(0, 1.02, 400), root)
    upper, mse = upper_on_grid(ratio, r, n, mu, caps)
    assert np.all(mse <= upper + EPS)
    assert upper[-1] <= upper.min() + EPS


@for_all(distributions(), distributions(), values(), counts, caps)
def test_truncation_error_is_bounded_by_its_two_parts(pi, mu, f, n, tau):
    """|f| <= B: MSE <= B^2 tau / n + (B M2 / (4 tau))^2: theorem Importance.truncated_mse."""
    most, second = abs(f).max(), (pi**2 / mu).sum()
    mse = estimators.truncation_error(tau, pi / mu, f, n, mu).mse
    assert mse <= most**2 * tau / n + (most * second / (4 * tau)) ** 2 + EPS


def miss(pi, mu, r, moment, *, n, delta):
    """P(|J_tau - J| > 2 sqrt(M ln(2/delta) / n)), over every sample."""
    tau = float(estimators.high_probability_clip(n, moment=moment, delta=delta))
    drawn, law = multinomial(n, mu)
    off = drawn @ (np.minimum(pi / mu, tau) * r) / n - pi @ r
    return law @ (abs(off) > 2 * np.sqrt(moment * np.log(2 / delta) / n) + EPS)


@for_all(distributions(), distributions(), values(low=0, high=8), st.sampled_from([0.02, 0.1, 0.4]))
def test_high_probability_clip_holds_with_its_probability(pi, mu, r, delta):
    moment = max((pi**2 / mu) @ r, 1e-3)
    assert miss(pi, mu, r, moment, n=4, delta=delta) <= delta + EPS


def test_refuted_high_probability_clip_from_squared_rewards():
    """r = .1, mu(y) = .01, pi(y) = 1, n = 3689: E[rho^2 r^2] = 1 fails 978 times in a thousand."""
    example = [np.array(x) for x in ((1.0, 0.0), (0.01, 0.99), (0.1, 0.1))]
    assert miss(*example, 1.0, n=3689, delta=0.05) == pytest.approx(0.978, abs=1e-3)
    assert miss(*example, 10.0, n=3689, delta=0.05) <= 0.05


def test_a_pilot_without_a_reward_truncates_nothing():
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])
    best = optimal(pi / mu, np.zeros(3), 8.0, mu)
    assert (float(best.tau), float(best.mse)) == (pytest.approx(3), 0)


def test_ionides_rate_is_the_root():
    np.testing.assert_allclose(estimators.ionides_clip(49), 7)
