"""Properties 6 and 7: the truncation that minimises the mean squared error."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.core import bounds, clipping
from tests.exact.draws import EPS, Y, binary, distributions, few, values

optimal = jax.jit(clipping.optimal_clip)
counts = st.integers(1, 60).map(float)


@jax.jit
def mse_on_grid(ratios, f, n, mu):
    """The MSE at 801 caps from 0 to a little beyond the largest ratio."""
    grid = ratios.max() * jax.numpy.linspace(0, 1.02, 801)
    return jax.vmap(lambda t: clipping.truncation_error(t, ratios, f, n, mu).mse)(grid)


def relative_excess(ratio, f, mu, tau):
    return mu @ (np.maximum(ratio - tau, 0) * f)


@few
@given(distributions(), distributions(), binary(), counts)
def test_optimal_clip_solves_the_fixed_point(pi, mu, r, n):
    """Property 6: for r in {0, 1}, tau = J + (n - 1) E_mu[(rho - tau)_+ r].

    Theorems OptimalTruncation.optimal_clip_fixed_point, OptimalTruncation.mse_binary,
    OptimalTruncation.fixed_point_exists, OptimalTruncation.fixed_point_unique,
    OptimalTruncation.residual_increasing.
    """
    tau = optimal(pi / mu, r, n, mu).tau
    expected = pi @ r + (n - 1) * relative_excess(pi / mu, r, mu, tau)
    np.testing.assert_allclose(tau, expected, rtol=1e-8)


@few
@given(distributions(), distributions(), binary(), counts)
def test_optimal_clip_beats_a_dense_grid(pi, mu, r, n):
    """Property 6: no cap on a dense grid has a smaller error.

    Theorems OptimalTruncation.optimal_clip_fixed_point, OptimalTruncation.mse_binary,
    OptimalTruncation.fixed_point_exists, OptimalTruncation.fixed_point_unique,
    OptimalTruncation.residual_increasing.
    """
    assert optimal(pi / mu, r, n, mu).mse <= mse_on_grid(pi / mu, r, n, mu).min() + 1e-12


@few
@given(distributions(), distributions(), binary(), counts)
def test_optimal_clip_grows_with_n_and_no_faster_than_its_root(pi, mu, r, n):
    """Property 6: nondecreasing in n, below (J + sqrt(J^2 + (n - 1) M2)) / 2.

    Theorems OptimalTruncation.fixed_point_monotone, OptimalTruncation.fixed_point_rate.
    """
    taus = [optimal(pi / mu, r, m, mu).tau for m in (n, n + 1, 10 * n)]
    assert taus[0] <= taus[1] + EPS
    assert taus[1] <= taus[2] + EPS
    assert taus[0] <= bounds.optimal_clip_bound(pi @ r, (pi**2 / mu) @ r**2, n) + EPS


@few
@given(distributions(), distributions(), binary(), counts, st.integers(1, 40).map(lambda i: i / 8))
def test_optimal_clip_does_not_depend_on_the_rewards_unit(pi, mu, r, n, scale):
    """Property 6: invariant to r -> c r."""
    tau = optimal(pi / mu, r, n, mu).tau
    np.testing.assert_allclose(optimal(pi / mu, scale * r, n, mu).tau, tau, rtol=1e-9)


@few
@given(distributions(), distributions(), values(Y, 2), counts)
def test_optimal_clip_of_vectors_beats_a_dense_grid(pi, mu, f, n):
    """Property 7: for signed vectors the error is not unimodal, and the scan still finds the least."""
    best = optimal(pi / mu, f, n, mu)
    assert best.mse <= mse_on_grid(pi / mu, f, n, mu).min() + 1e-12
    np.testing.assert_allclose(best.mse, best.variance + best.bias @ best.bias, atol=EPS)


@few
@given(distributions(), distributions(), values(low=0, high=8), counts)
def test_the_fixed_point_bounds_the_error_of_fractional_rewards(pi, mu, r, n):
    """For r in [0, 1], r^2 <= r: the error of the rewards is below that of the binary surrogate.

    Theorems OptimalTruncation.mse_le_upper, OptimalTruncation.fixed_point_least_upper.
    """
    exact = clipping.truncation_error(1.0, pi / mu, r, n, mu)
    surrogate = (
        exact.bias**2
        + (mu @ (np.minimum(pi / mu, 1) ** 2 * r) - (mu @ (np.minimum(pi / mu, 1) * r)) ** 2) / n
    )
    assert exact.mse <= surrogate + EPS


def test_without_weights_the_pilot_sample_counts_evenly():
    ratios, r = np.array([0.5, 1.5, 1.0]), np.array([0.0, 1.0, 1.0])
    plugged, exact = (clipping.optimal_clip(ratios, r, 4.0, w) for w in (None, np.full(3, 1 / 3)))
    np.testing.assert_allclose(plugged.tau, exact.tau)


def test_nan_is_not_an_optimum():
    best = clipping.optimal_clip(np.array([0.5, 1.5]), np.array([0.0, np.nan]), 4.0)
    assert np.isnan(best.mse)


@pytest.mark.parametrize(("ratios", "f"), [((2, 3), (2, 3)), ((3,), (2,)), ((0,), (0,))])
def test_shapes_that_disagree_are_refused(ratios, f):
    with pytest.raises(ValueError, match="need ratios"):
        clipping.optimal_clip(np.ones(ratios), np.ones(f), 4.0)


def test_the_two_rates():
    """Theorem Importance.truncated_mse."""
    np.testing.assert_allclose(clipping.ionides_clip(49), 7)
    tau = clipping.high_probability_clip(100, 2.0, 0.05)
    np.testing.assert_allclose(tau, np.sqrt(3 * 100 * 2 / (4 * np.log(40))))


@few
@given(distributions(), distributions(), values(low=0, high=8), st.sampled_from([0.02, 0.1, 0.4]))
def test_high_probability_clip_holds_with_its_probability(pi, mu, r, delta):
    """P(|J_tau - J| > 2 sqrt(M2 ln(2/delta) / n)) <= delta, over every sample of four."""
    n, second = 4, max((pi**2 / mu) @ r**2, 1e-3)
    tau = clipping.high_probability_clip(n, second, delta)
    terms = np.minimum(pi / mu, tau) * r
    grid = np.stack(np.meshgrid(*[np.arange(Y)] * n, indexing="ij"), -1).reshape(-1, n)
    far = abs(terms[grid].mean(-1) - pi @ r) > 2 * np.sqrt(second * np.log(2 / delta) / n) + EPS
    assert mu[grid].prod(-1) @ far <= delta + EPS
