"""Properties 14 and 15: what raising a surrogate does to the reward; section 1's bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds
from ogrpo.core.surrogates import clipped_surrogate
from tests.exact.draws import EPS, distributions, for_all, values, varied, widths

pytestmark = pytest.mark.slow

epsilons = st.sampled_from([1e-6, 0.01, 0.3, 0.9, 2.0])


@jax.jit
def everything(pi, pi_k, mu, r, eps, clip_eps):
    args = (pi, pi_k, mu, r)
    return {
        "gain": (pi - pi_k) @ r,
        "sigma": bounds.reward_scale(mu, r, eps=eps),
        "surrogate": bounds.surrogate_gain(pi, mu, r, eps=eps),
        "identity": bounds.improvement_identity(*args, eps=eps),
        "sharp": bounds.sharp_bound(*args, eps=eps),
        "stale": bounds.stale_bound(*args, eps=eps),
        "published": bounds.published_bound(*args, eps=eps),
        "mm": bounds.minorise_maximise_gap(*args, eps=eps, clip_eps=clip_eps),
    }


@for_all(distributions(), distributions(), distributions(), varied(), epsilons)
def test_improvement_identity_and_the_published_bound_where_it_is_true(pi, pi_k, mu, r, eps):
    """Property 14: J(pi) - J(pi_k) = sigma (L(pi) - L(pi_k)), exactly.

    Mroueh et al.'s corollary 1 needs sigma <= 1 and pi << mu. Theorems
    Improvement.improvement_identity, Improvement.published_improvement.
    """
    of = everything(pi, pi_k, mu, r, eps, 0.2)
    np.testing.assert_allclose(of["identity"], of["gain"], atol=EPS)
    assert of["sigma"] > 1 or of["gain"] >= of["published"] - 1e-7


@for_all(distributions(), distributions(), distributions(), varied(low=-16, high=16), epsilons)
def test_improvement_is_at_least_the_sharp_bound(pi, pi_k, mu, r, eps):
    """Property 14: any sigma > 0, any range of rewards; and the bound that does not blow up.

    Theorems Improvement.sharp_improvement, Improvement.improvement_no_blowup.
    """
    of = everything(pi, pi_k, mu, r, eps, 0.2)
    assert of["gain"] >= of["sharp"] - 1e-7
    assert of["gain"] >= of["stale"] - EPS


@for_all(distributions(least=0), distributions(least=0), values())
def test_total_variation_bounds_every_mean(pi, mu, f):
    """f in [a, b]: |E_pi f - E_mu f| <= (b - a) TV on any supports: theorem Divergence.tv_dual."""
    assert abs((pi - mu) @ f) <= np.ptp(f) * bounds.total_variation(pi, mu) + EPS


def test_sharp_bound_is_attained_on_two_points():
    """Property 14: r = (0, 1), pi and pi_k above mu at 1: theorem Improvement.sharp_attained."""
    pi, pi_k, mu, r = map(np.array, ((0.3, 0.7), (0.4, 0.6), (0.5, 0.5), (0.0, 1.0)))
    of = everything(pi, pi_k, mu, r, 0.01, 0.2)
    np.testing.assert_allclose(of["sharp"], of["gain"], atol=EPS)


@for_all(distributions(), distributions(), distributions(), varied(), st.sampled_from([0.0, 1e-6]))
def test_refuted_published_bound_promises_nothing(pi, pi_k, mu, r, eps):
    """Property 14: its right side is <= 0 when sigma <= 1/2: Improvement.published_vacuous."""
    of = everything(pi, pi_k, mu, r, eps, 0.2)
    assert of["sigma"] > 0.5 or of["published"] <= EPS


@pytest.mark.parametrize("sigma", [1.001, 1.15**0.5, 1.2, 1.5, 4.0])
def test_refuted_published_bound_for_any_sigma_above_one(sigma):
    """A fair coin moved to .6: the bound exceeds the gain of .1 for every sigma > 1.

    .1067 with eps = .9, sigma = 1.072. Theorem Improvement.published_false_sigma_gt1.
    """
    pi, mu, r = map(np.array, ((0.4, 0.6), (0.5, 0.5), (0.0, 1.0)))
    of = everything(pi, mu, mu, r, sigma**2 - 0.25, 0.2)
    assert float(of["sigma"]) == pytest.approx(sigma)
    assert of["gain"] < of["published"] - 1e-5
    if sigma**2 == pytest.approx(1.15):
        assert of["published"] == pytest.approx(0.1067, abs=1e-4)


@pytest.mark.parametrize("sigma", [0.67, 0.74**0.5, 1.0])
def test_refuted_published_bound_off_the_support(sigma):
    """Counterexample: -1 < -2 (1 - sigma)/sigma where pi is not << mu; -.325 at eps = .74.

    Theorem Improvement.published_false_off_support.
    """
    pi, mu, r = map(np.array, ((0.0, 1.0), (1.0, 0.0), (1.0, 0.0)))
    of = everything(pi, mu, mu, r, sigma**2, 0.2)
    assert of["gain"] == -1 < of["published"] - 0.01
    assert of["published"] == pytest.approx(-2 * (1 - sigma) / sigma, abs=1e-9)


@for_all(distributions(), distributions(), distributions(), varied(), epsilons, widths)
def test_minorise_maximise(pi, pi_k, mu, r, eps, clip_eps):
    """Property 15: J(pi) - J(pi_k) >= sigma (L^c(pi) - L^c(pi_k)) with the exact centre.

    Theorems Improvement.minorise_maximise, Improvement.mm_baseline, Improvement.mm_touch.
    """
    of = everything(pi, pi_k, mu, r, eps, clip_eps)
    assert of["mm"] >= -EPS
    center = pi_k / mu
    band = {"eps_low": clip_eps, "eps_high": clip_eps, "center": center}
    touch = bounds.clipped_gain(pi_k, mu, r, center=center, eps=eps, clip_eps=clip_eps)
    np.testing.assert_allclose(touch, bounds.surrogate_gain(pi_k, mu, r, eps=eps), atol=EPS)
    for baseline in (-0.7, 0.4, 1.5):  # any constant, and no sigma
        new, old = (clipped_surrogate(p / mu, r - baseline, **band) for p in (pi, pi_k))
        assert mu @ (new - old) <= of["gain"] + EPS


@for_all(distributions(), distributions(), distributions(), values(low=0, high=8), widths)
def test_the_unit_centre_guards_the_gain_less_its_price(pi, pi_k, mu, r, eps):
    """J(pi) - J(pi_k) >= L1(pi) - L1(pi_k) - E_mu[c a - f(c, 1, a)], the price 0 inside the band.

    Theorems Improvement.unit_centre_price, Improvement.unit_centre_free.
    """
    band = {"eps_low": eps, "eps_high": eps}
    for baseline in (0.0, 0.6):
        a, center = jnp.asarray(r - baseline), jnp.asarray(pi_k / mu)
        ones = jnp.ones(4)
        new, old = (
            mu @ clipped_surrogate(jnp.asarray(p / mu), a, center=ones, **band) for p in (pi, pi_k)
        )
        price = np.asarray(bounds.unit_center_price(center, a, **band))
        assert (pi - pi_k) @ r >= new - old - mu @ price - EPS
        assert price.min() >= -EPS
        inside = abs(center - 1) <= eps
        np.testing.assert_allclose(price[inside], 0, atol=EPS)


@for_all(distributions(), distributions(), distributions(), values(low=0, high=8))
def test_a_kl_ball_bounds_the_harm(pi, old, mu, r):
    """Section 1: the exact worst case, and the three closed forms below it, hold in order.

    Theorems Divergence.kl_data_processing, Improvement.kl_no_harm, Improvement.kl_no_harm_old,
    Improvement.kl_no_harm_relative.
    """
    delta, value = max(float(bounds.kl_divergence(pi, mu)), 0.0), mu @ r
    worst = bounds.worst_case_value(value, delta)
    assert pi @ r >= worst - 1e-7
    assert worst >= bounds.pinsker_bound(value, delta) - 1e-7
    assert worst >= bounds.relative_bound(value, delta) - 1e-7
    since_old = max(float(bounds.kl_divergence(old, mu)), 0.0)
    assert pi @ r >= bounds.pinsker_bound(old @ r, delta) - np.sqrt(since_old / 2) - 1e-7
    moved, kept = (np.array([p @ r, 1 - p @ r]) for p in (pi, mu))
    if kept.min() > 0:
        assert bounds.kl_divergence(moved, kept) <= delta + 1e-7
    assert pi @ r >= bounds.bernstein_bound(value, mu @ (r - value) ** 2, delta) - 1e-7


@for_all(distributions(2), distributions(2))
def test_the_worst_case_is_attained_by_binary_rewards(pi, mu):
    """Section 1: two outcomes, r = (0, 1), pi(1) <= mu(1): the bound is J(pi)."""
    pi, mu = (np.sort(p)[::-1] for p in (pi, mu))
    if pi[1] <= mu[1]:
        delta = max(float(bounds.kl_divergence(pi, mu)), 0.0)
        assert bounds.worst_case_value(mu[1], delta) == pytest.approx(pi[1], abs=1e-7)


def test_pinsker_is_sharp_in_the_limit():
    """Section 1: at J(mu) = 1/2 the loss over sqrt(delta / 2) tends to 1."""
    shares = [
        (0.5 - float(bounds.worst_case_value(0.5, delta))) / np.sqrt(delta / 2)
        for delta in (1e-1, 1e-2, 1e-4)
    ]
    assert shares[0] < shares[1] < shares[2] < 1
    assert shares[2] > 0.9999


def test_refuted_improvement_from_a_kl_ball_about_the_sampler():
    """The proposal's theorem 1: KL(pi_new||mu) = 0, and J drops by 1 from pi_old.

    Theorem Improvement.proposal_theorem1_false.
    """
    new = mu = np.array([1.0, 0.0])
    old, r = np.array([0.0, 1.0]), np.array([0.0, 1.0])
    assert bounds.kl_divergence(new, mu) == 0
    assert (new - old) @ r == -1


@for_all(distributions(), varied(low=-16, high=16))
def test_reward_scale_is_popovicius(mu, r):
    """sigma^2 <= (b - a)^2 / 4 + eps: on [0, 1] it is sigma squared that is at most a quarter.

    Theorems Prob.popoviciu, Improvement.variance_le_quarter.
    """
    assert bounds.reward_scale(mu, r, eps=0.0) ** 2 <= np.ptp(r) ** 2 / 4 + EPS
    unit = (r - r.min()) / np.ptp(r)
    assert bounds.reward_scale(mu, unit, eps=0.0) ** 2 <= 0.25 + EPS
