"""Ratios under a sampler that cuts its distribution: exact over every token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.corrections import log_kept_mass
from ogrpo.core.objectives import TokenBatch, reinforce

PI = jnp.log(jnp.array([0.40, 0.25, 0.16, 0.12, 0.07]))
MU = jnp.log(jnp.array([0.30, 0.10, 0.35, 0.20, 0.05]))
GAINS = jnp.array([1.0, -0.5, 0.25, 2.0, -1.0])


def over(logits, kept):
    """log pi_K at five places, one for each token that may be drawn there."""
    whole = jax.nn.log_softmax(logits)
    here = (5, 5)
    return whole - log_kept_mass(jnp.broadcast_to(whole, here), jnp.broadcast_to(kept, here))


@pytest.mark.parametrize("members", [[0, 2, 3], [2], [0, 1, 2, 3, 4]])
def test_over_the_kept_set_ratios_have_mean_1_and_the_gradient_is_that_of_the_cut_objective(
    members,
):
    kept = jnp.isin(jnp.arange(5), jnp.array(members))
    behavior = jnp.where(kept, over(MU, kept), 0)
    mu = jnp.where(kept, jnp.exp(behavior), 0)
    np.testing.assert_allclose(mu.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose((mu * jnp.exp(over(PI, kept) - behavior)).sum(), 1, rtol=1e-5)
    whole = (mu * jnp.exp(PI - behavior)).sum()
    np.testing.assert_allclose(whole, np.exp(np.asarray(PI))[members].sum(), rtol=1e-5)

    def estimate(logits):
        now = jnp.where(kept, over(logits, kept), 0)
        ratio = jnp.exp(jax.lax.stop_gradient(now) - behavior)
        return jnp.sum(mu * -reinforce(now, TokenBatch(ratio * GAINS, kept, behavior)))

    def objective(logits):
        cut = jax.nn.softmax(jnp.where(kept, logits, -1e30))
        return jnp.sum(jnp.where(kept, cut * GAINS, 0))

    grads = jax.grad(estimate)(PI), jax.grad(objective)(PI)
    np.testing.assert_allclose(*grads, rtol=1e-4, atol=1e-6)


def test_a_place_without_a_record_loses_nothing():
    none = jnp.zeros((2, 3), bool)
    value, grad = jax.value_and_grad(lambda x: log_kept_mass(x, none).sum())(
        jnp.full((2, 3), -jnp.inf)
    )
    assert value == 0
    assert not np.any(grad)
