"""Diagnostics beside the loss."""

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import diagnostics, trust_region
from ogrpo.core.aggregate import combine, mean
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import moment_ratio
from tests.core.cases import batch_of, of_each_prompt, poisoned, problem


def test_diagnose_by_hand_and_by_parts():
    """Of a batch with anything under its mask, too."""
    log_probs, batch, a = problem()
    hidden = poisoned()
    seen, same = (
        {k: float(mean(v)) for k, v in diagnostics.diagnose(*inputs).items()}
        for inputs in ((log_probs, batch), (jnp.asarray(hidden.lp, float), batch_of(hidden)))
    )
    assert same == seen
    m, ratio = a.mask, np.exp(a.lp - a.old)
    expected = {
        "ratio": ratio[m].mean(),
        "ratio_squared": (ratio[m] ** 2).mean(),
        "kl_pi_mu": (ratio * np.log(ratio) - ratio + 1)[m].mean(),
        "kl_mu_pi": (ratio - 1 - np.log(ratio))[m].mean(),
        "kl_pi_ref": (np.exp(a.ref - a.lp) - 1 - (a.ref - a.lp))[m].mean(),
        "mismatch": abs(a.prox - a.old)[m].mean(),
        "entropy": -a.lp[m].mean(),
        "advantage": a.A[m].mean(),
        "advantage_squared": (a.A[m] ** 2).mean(),
    }
    assert seen == pytest.approx(expected, rel=1e-4)
    measured = mean(trust_region.kl_total(log_probs, batch))
    assert float(measured) == pytest.approx(expected["kl_pi_mu"], rel=1e-5)
    parts = of_each_prompt(diagnostics.diagnose, log_probs, batch)
    for name in expected:
        added = combine(*(part[name] for part in parts))
        assert float(mean(added)) == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("far", [44.0, 45.0, 100.0])
def test_a_far_token_leaves_an_effective_size_of_about_one(far):
    delta = jnp.zeros((3, 1000)).at[1, 7].set(far)
    nothing = jnp.zeros_like(delta)
    batch = TokenBatch(nothing, nothing == 0, nothing - far, nothing - far, nothing)
    parts = of_each_prompt(diagnostics.diagnose, delta - far, batch)
    first, second = (combine(*(p[name] for p in parts)) for name in ("ratio", "ratio_squared"))
    assert float(diagnostics.ess_from_moments(first, second)) == pytest.approx(1, rel=1e-4)


def test_a_ratio_for_moments_is_bounded_so_that_many_squares_can_be_added():
    at = moment_ratio(jnp.array([-200.0, 0.0, 19.0, 20.0, 44.4, jnp.inf, jnp.nan]))
    top = np.exp(20.0)
    np.testing.assert_allclose(at, [0, 1, np.exp(19.0), top, top, top, np.nan], rtol=1e-6)
    assert np.isfinite(np.float32((3e10 * top) ** 2))


def test_quantiles_are_of_the_kept():
    ratio, mask = jnp.array([1.0, 2.0, 3.0, 99.0]), jnp.array([True, True, True, False])
    quantiles = diagnostics.ratio_quantiles(ratio, mask, jnp.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(quantiles, [1, 2, 3])
    broken = diagnostics.ratio_quantiles(ratio.at[1].set(jnp.nan), mask, jnp.array([0.0]))
    assert np.isnan(broken).all()
