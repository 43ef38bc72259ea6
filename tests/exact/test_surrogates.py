"""Property 16: f_eps and its relatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import surrogates
from tests.exact.draws import EPS, eighths, for_all, values

pytestmark = pytest.mark.slow

ratios = values(low=0, high=32)
centers = values(low=0, high=24)
widths = eighths(0, 12)


@jax.jit
def clipped(ratio, advantages, eps_low, eps_high, center):
    return surrogates.clipped_surrogate(
        ratio, advantages, eps_low=eps_low, eps_high=eps_high, center=center
    )


@for_all(ratios, values(), widths, widths, centers)
def test_surrogate_is_its_case_form_and_a_minorant_that_touches(r, a, low, high, c):
    """Property 16: a min(r, c + eps) for a >= 0, a max(r, (c - eps)_+) for a < 0.

    f <= r a for every r, with equality at r = r'; f - c a <= max(eps_low, eps_high) |a|: what a
    sample can promise is bounded above. Theorems Clip.feps_cases, Clip.feps_inner_max,
    Clip.feps_le, Clip.feps_touch, Clip.feps_gap_le.
    """
    actual = clipped(r, a, low, high, c)
    case = np.where(a >= 0, a * np.minimum(r, c + high), a * np.maximum(r, np.maximum(c - low, 0)))
    np.testing.assert_allclose(actual, case, atol=EPS)
    assert np.all(actual <= r * a + EPS)
    np.testing.assert_allclose(clipped(c, a, low, high, c), c * a, atol=EPS)
    assert np.all(actual - c * a <= max(low, high) * abs(a) + EPS)


@for_all(ratios, ratios, values(), widths, widths, centers)
def test_surrogate_rises_with_its_width_and_is_concave_in_the_ratio(r, s, a, eps, more, c):
    """Property 16: nondecreasing in eps; midpoint concavity for either sign of a.

    Theorems Clip.feps_mono, Clip.feps_concave.
    """
    at_r, at_s, wide = (
        clipped(x, a, width, width, c) for x, width in ((r, eps), (s, eps), (r, eps + more))
    )
    assert np.all(wide >= at_r - EPS)
    assert np.all(clipped((r + s) / 2, a, eps, eps, c) >= (at_r + at_s) / 2 - EPS)


@for_all(ratios, values(), eighths(0, 8), widths, values(low=1, high=24))
def test_unit_centre_is_ppos_clip_and_decoupled_ppo_a_multiplicative_band(r, a, low, high, c):
    """Property 16: r' = 1 is min(r a, clip(r, 1 - eps, 1 + eps) a), for eps <= 1 on the low side.

    r' min(rho a, clip(rho, 1 +- eps) a) with rho = r / r' clips r to r' (1 +- eps). Theorems
    Clip.feps_ppo, Clip.decoupled_ppo.
    """

    def ppo(rho):
        return np.minimum(rho * a, np.clip(rho, 1 - low, 1 + high) * a)

    np.testing.assert_allclose(clipped(r, a, low, high, np.ones(4)), ppo(r), atol=EPS)
    ours = surrogates.decoupled_surrogate(
        jnp.asarray(r), jnp.asarray(a), eps_low=low, eps_high=high, center=jnp.asarray(c)
    )
    np.testing.assert_allclose(ours, c * ppo(r / c), atol=EPS)


soft = partial(surrogates.soft_surrogate, temperature_pos=1.0, temperature_neg=1.05)
clipped_slope, soft_slope = (
    jax.jit(jax.grad(lambda r, *others, fn=fn: fn(r, *others).sum())) for fn in (clipped, soft)
)


@for_all(values(), widths.filter(bool), values(low=1, high=24), ratios)
def test_slope_at_the_centre_is_the_advantage(a, eps, c, r):
    """Property 16: at r = r'; of SAPO at r = 1, where it is largest. Theorem Clip.feps_slope."""
    np.testing.assert_allclose(clipped_slope(c, a, eps, eps, c), a, atol=EPS)
    np.testing.assert_allclose(soft_slope(np.ones(4), a), a, atol=EPS)
    assert np.all(abs(soft_slope(r, a)) <= abs(a) + EPS)


def test_refuted_clipping_bounds_the_ratio():
    """For a < 0 the surrogate falls without end as the ratio grows; a cap or a dual clip stops it.

    Theorem Clip.feps_unbounded.
    """
    r, a = jnp.array([10.0, 1000.0]), jnp.array([-1.0, -1.0])
    ones = jnp.ones(2)
    np.testing.assert_allclose(clipped(r, a, 0.2, 0.2, ones), -r)
    eps = {"eps_low": 0.2, "eps_high": 0.2}
    np.testing.assert_allclose(surrogates.capped_surrogate(r, a, **eps, cap=3.0), -3 * ones)
    np.testing.assert_allclose(surrogates.dual_clipped_surrogate(r, a, **eps, dual=3.0), -3 * ones)


@for_all(ratios, values(), eighths(0, 8), eighths(0, 8))
def test_a_cap_above_the_band_is_the_dual_clip(r, a, low, high):
    """min(r, cap) before the product equals max with cap a for a < 0, if cap >= 1 + eps."""
    r, a, eps = jnp.asarray(r), jnp.asarray(a), {"eps_low": low, "eps_high": high}
    capped = surrogates.capped_surrogate(r, a, **eps, cap=3.0)
    dual = surrogates.dual_clipped_surrogate(r, a, **eps, dual=3.0)
    np.testing.assert_allclose(capped, dual, atol=EPS)
