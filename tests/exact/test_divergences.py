"""Properties 13, 21 and 22: divergences, their order, their estimators and those gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import bounds, divergences, gates
from tests.exact.draws import EPS, Y, distributions, for_all, values

pytestmark = pytest.mark.slow

kl, chi_square, tv = (
    jax.jit(f) for f in (bounds.kl_divergence, bounds.chi_square_divergence, bounds.total_variation)
)


@for_all(distributions(), distributions())
def test_divergences_are_ordered(pi, mu):
    """Property 13: TV^2 <= KL/2; KL <= ln(1 + chi2) <= chi2 <= R - 1.

    chi2 <= kappa(max rho) KL; E_mu[rho^2] >= exp(KL), the direction that does hold. Theorems
    Divergence.pinsker, Divergence.kl_ge0, Divergence.chi2_ge0, Divergence.kl_le_ln_chi2,
    Divergence.kl_le_chi2, Divergence.chi2_le_sup, Divergence.chi2_le_kappa_kl,
    Divergence.m2_ge_exp_kl.
    """
    k, x = kl(pi, mu), chi_square(pi, mu)
    assert min(k, x) >= -EPS
    assert tv(pi, mu) ** 2 <= k / 2 + EPS
    assert k <= np.log1p(x) + EPS
    assert np.log1p(x) <= x + EPS
    assert x <= (pi / mu).max() - 1 + EPS
    assert x <= bounds.chi_square_per_kl((pi / mu).max()) * k * (1 + 1e-6) + EPS
    assert 1 + x >= np.exp(k) - EPS


def test_chi_square_per_kl_is_tight_and_tends_to_two():
    """Property 13: mass eps at ratio R attains kappa as eps -> 0; kappa(1) = 2."""
    for ratio in (1.5, 3.0, 20.0):
        mu = np.array([1e-7, 1 - 1e-7])
        pi = np.array([ratio * 1e-7, 1 - ratio * 1e-7])
        attained = chi_square(pi, mu) / kl(pi, mu)
        np.testing.assert_allclose(attained, bounds.chi_square_per_kl(ratio), rtol=1e-5)
    np.testing.assert_allclose(bounds.chi_square_per_kl(1.0), 2)
    near = map(bounds.chi_square_per_kl, (0.9995, 1.0015))
    np.testing.assert_allclose(*near, rtol=1e-3)


@for_all(distributions(least=0))
def test_the_entropy_from_logits_is_that_of_probabilities(pi):
    """H(p) = ln Y - KL(p||uniform), zeros included."""
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(pi)) + 3.0
    expected = np.log(Y) - kl(pi, np.full(Y, 1 / Y))
    np.testing.assert_allclose(divergences.entropy(logits), expected, atol=EPS)


def test_chi_square_per_kl_is_exact_near_one_in_single_precision():
    """kappa = 2 + 2 t / 3 - t^2 / 18 + ..., t = R - 1, to 1e-4 for every t, however small."""
    with jax.enable_x64(False):
        near = np.asarray(bounds.chi_square_per_kl(jnp.float32(1) + jnp.geomspace(1e-7, 1, 200)))
        ratio = np.asarray(jnp.float32(1) + jnp.geomspace(1e-7, 1, 200), np.float64)
    t = ratio - 1
    series = sum((-t) ** k / ((k + 1) * (k + 2)) for k in range(60))
    np.testing.assert_allclose(near[t < 0.5], 1 / series[t < 0.5], rtol=1e-4)
    far = t >= 0.5
    expected = t[far] ** 2 / (ratio[far] * np.log(ratio[far]) - t[far])
    np.testing.assert_allclose(near[far], expected, rtol=1e-4)


@for_all(distributions(), distributions(), distributions())
def test_k1_and_k3_are_unbiased(pi, ref, mu):
    """Property 21: E_pi[k] = KL(pi||ref); under mu with the weight rho, E_mu[rho k] is it, too.

    E_mu[rho ln rho - rho + 1] = KL(pi||mu), never negative. Theorems KLEstimators.k1_unbiased,
    KLEstimators.k3_unbiased, KLEstimators.k1_weighted, KLEstimators.k3_weighted.
    """
    for fn in (divergences.k1, divergences.k3):
        np.testing.assert_allclose(pi @ fn(jnp.log(pi), jnp.log(ref)), kl(pi, ref), atol=EPS)
        log_ratio = jnp.log(pi / mu)
        terms = divergences.weighted_kl(jnp.log(pi), jnp.log(ref), kl_fn=fn, log_ratio=log_ratio)
        np.testing.assert_allclose(mu @ terms, kl(pi, ref), atol=EPS)
    terms = divergences.behavior_kl(jnp.log(pi / mu))
    np.testing.assert_allclose(mu @ terms, kl(pi, mu), atol=EPS)
    assert terms.min() >= -EPS


def test_k3_needs_the_reference_within_the_policy():
    """Property 21: k3 misses mass of ref where pi has none, k1 does not: KLEstimators.k3_mean."""
    pi, ref = np.array([0.5, 0.5]), np.array([0.25, 0.25])  # the rest of ref lies off supp pi
    exact = pi @ np.log(pi / ref)
    assert pi @ divergences.k1(jnp.log(pi), jnp.log(ref)) == pytest.approx(exact)
    assert pi @ divergences.k3(jnp.log(pi), jnp.log(ref)) == pytest.approx(exact - 0.5)


def test_k3_is_constant_far_from_the_reference_and_shuts_its_gate_at_infinity():
    far = jnp.array([-61.0, -200.0, -jnp.inf])
    values, slopes = jax.vmap(jax.value_and_grad(lambda x: divergences.k3(x, jnp.zeros(()))))(far)
    np.testing.assert_allclose(values, np.expm1(60.0) - 60, rtol=1e-12)
    assert not np.any(slopes)
    kept = gates.k3_mask(-far, jnp.zeros(3), jnp.array([False, False, True]), limit=0.01)
    assert not np.any(kept)


def test_refuted_k3_on_the_samplers_draws():
    """Property 21: unweighted samples of mu bias k3; the importance-corrected form is exact."""
    pi, ref, mu = np.array([0.5, 0.5]), np.array([0.8, 0.2]), np.array([0.9, 0.1])
    k = divergences.k3(jnp.log(pi), jnp.log(ref))
    assert abs(mu @ k - kl(pi, ref)) > 0.05
    how = {"kl_fn": divergences.k3, "log_ratio": jnp.log(pi / mu)}
    corrected = divergences.importance_kl(jnp.log(pi), jnp.log(ref), **how)
    assert mu @ corrected == pytest.approx(float(kl(pi, ref)))


def policy(logits):
    return jax.nn.softmax(logits)


def gradient_of_samples(fn, logits, ref, mu):
    """E_mu of the gradient of a per-token loss, the samples fixed: mu does not move with theta."""
    return jax.grad(lambda x: mu @ fn(jax.nn.log_softmax(x), jnp.log(ref)))(logits)


@for_all(values(), distributions())
def test_gradients_of_the_estimators_as_losses(logits, ref):
    """Property 22: E grad k1 = 0, E grad k2 = grad KL(pi||ref), E grad k3 = grad KL(ref||pi).

    Theorems KLEstimators.k1_gradient, KLEstimators.k2_gradient, KLEstimators.k3_gradient.
    """
    pi = policy(logits)
    forward = jax.grad(lambda x: bounds.kl_divergence(policy(x), ref))(logits)
    reverse = jax.grad(lambda x: bounds.kl_divergence(ref, policy(x)))(logits)
    k1, k2, k3 = divergences.k1, divergences.k2, divergences.k3
    for fn, gradient in ((k1, jnp.zeros(Y)), (k2, forward), (k3, reverse)):
        np.testing.assert_allclose(gradient_of_samples(fn, logits, ref, pi), gradient, atol=EPS)


@pytest.mark.parametrize("fn", [divergences.k1, divergences.k2, divergences.k3])
@for_all(logits=values(), ref=distributions(), mu=distributions())
def test_corrected_estimators_have_the_gradients_on_policy_off_policy(fn, logits, ref, mu):
    """With the weight held, each keeps the gradient of property 22 on samples of any mu.

    Through the ratio as well, k1 and k3 give grad KL(pi||ref).
    """
    held = gradient_of_samples(fn, logits, ref, policy(logits))
    true = jax.grad(lambda x: bounds.kl_divergence(policy(x), ref))(logits)
    for form, expected in ((divergences.weighted_kl, held), (divergences.importance_kl, true)):
        if (form, fn) == (divergences.importance_kl, divergences.k2):
            continue

        def corrected(log_probs, ref_log_probs, form=form):
            log_ratio = log_probs - jnp.log(mu)
            return form(log_probs, ref_log_probs, kl_fn=fn, log_ratio=log_ratio)

        actual = gradient_of_samples(corrected, logits, ref, mu)
        np.testing.assert_allclose(actual, expected, atol=EPS)


@for_all(distributions(), distributions(), st.integers(0, Y - 1))
def test_binary_divergences_bound_the_exact_ones_from_below(pi, mu, token):
    """ "This token or another" loses information: data processing."""
    new, old = jnp.log(pi), jnp.log(mu)
    assert divergences.binary_tv(new, old)[token] <= tv(pi, mu) + EPS
    assert divergences.binary_kl(new, old)[token] <= kl(mu, pi) + EPS
