"""Ratios under a sampler that cuts its distribution: exact over every token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import corrections as core
from ogrpo.core.objectives import TokenBatch, reinforce
from ogrpo.core.ratios import log_ratio

PI = jnp.log(jnp.array([0.40, 0.25, 0.16, 0.12, 0.07]))
MU = jnp.log(jnp.array([0.30, 0.10, 0.35, 0.20, 0.05]))
GAINS = jnp.array([1.0, -0.5, 0.25, 2.0, -1.0])
IDS = jnp.arange(5)
SETS = {
    "top_k": (core.top_k_set(MU, k=3), [0, 2, 3]),
    "top_p": (core.top_p_set(MU, top_p=0.8), [0, 2, 3]),
    "top_p, one more": (core.top_p_set(MU, top_p=0.86), [0, 1, 2, 3]),
    "min_p": (core.min_p_set(MU, min_p=0.5), [0, 2, 3]),
    "everything": (core.top_p_set(MU, top_p=1.0), [0, 1, 2, 3, 4]),
}


def everywhere(x):
    """The distribution at five places, one for each token that may be drawn there."""
    return jnp.broadcast_to(x, (5, 5))


def over(logits, inside):
    return core.kept_log_probs(everywhere(logits), IDS, everywhere(inside))


@pytest.mark.parametrize("name", SETS)
def test_ratios_over_the_kept_set_have_mean_1_and_those_of_whole_policies_do_not(name):
    with jax.enable_x64():
        inside, members = SETS[name]
        assert np.flatnonzero(inside).tolist() == members
        mu = np.exp(over(MU, inside))
        np.testing.assert_allclose(mu.sum(), 1, rtol=1e-6)
        mask = inside  # what may be drawn
        ratio = np.exp(log_ratio(over(PI, inside), over(MU, inside), mask))
        np.testing.assert_allclose((mu * ratio)[members].sum(), 1, rtol=1e-6)
        whole = np.exp(np.asarray(PI))[members] / mu[members]
        bias = core.ratio_bias(PI, inside)
        np.testing.assert_allclose((mu[members] * whole).sum() - 1, bias, rtol=1e-5, atol=1e-7)
        assert bias < -0.1 or len(members) > 3


@pytest.mark.parametrize("name", SETS)
def test_the_gradient_is_that_of_the_cut_objective(name):
    """E_{mu_K}[rho_K A d log pi_K] = d sum_K pi_K A, with the loss and ratio of the library."""
    inside, members = SETS[name]
    behavior, mask = over(MU, inside), inside

    def estimate(logits):
        now = over(logits, inside)
        ratio = jnp.exp(log_ratio(jax.lax.stop_gradient(now), behavior, mask))
        batch = TokenBatch(ratio * GAINS, mask, jnp.where(mask, behavior, 0))
        terms = -reinforce(jnp.where(mask, now, 0), batch)
        return jnp.sum(jnp.where(mask, jnp.exp(behavior) * terms, 0))

    def objective(logits):
        return jnp.sum(jnp.where(inside, jnp.exp(over(logits, inside)) * GAINS, 0))

    np.testing.assert_allclose(
        jax.grad(estimate)(PI), jax.grad(objective)(PI), rtol=1e-4, atol=1e-6
    )
    if len(members) < 5:  # the whole policy's gradient is another
        whole = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * GAINS))(PI)
        assert np.abs(whole - jax.grad(objective)(PI)).max() > 0.01


def test_what_is_not_kept_has_no_probability_and_shapes_are_checked():
    inside = jnp.array([True, True, False, False, False])
    assert np.isneginf(over(PI, inside)[2:]).all()
    with pytest.raises(ValueError, match=r"logits \[5\] and kept \[5\].*ids \[5\]"):
        core.kept_log_probs(PI, IDS, inside)
    with pytest.raises(ValueError, match="k must be from 1 to the vocabulary's 5, got 6"):
        core.top_k_set(PI, k=6)
