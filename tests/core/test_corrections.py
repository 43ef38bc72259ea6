"""An objective on samples of an older policy: limits, the decoupled form, and by enumeration."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core.advantages import positive_part
from ogrpo.core.corrections import corrected
from ogrpo.core.objectives import TokenBatch, decoupled, grpo, reinforce
from ogrpo.core.weights import plain_weight, truncated_weight, unit_weight


def batch(seed=0, shape=(3, 5)):
    rng = np.random.default_rng(seed)
    logs = [jnp.asarray(rng.normal(-1.5, 0.4, shape), jnp.float32) for _ in range(4)]
    mask = jnp.asarray(np.arange(shape[-1]) < rng.integers(1, shape[-1] + 1, (shape[0], 1)))
    advantages = jnp.asarray(rng.normal(size=shape), jnp.float32)
    return logs[0], TokenBatch(advantages, mask, *logs[1:])


def test_with_the_clip_and_a_truncated_weight_it_is_the_decoupled_objective():
    log_probs, tokens = batch()
    weight = partial(truncated_weight, cap=1.1)
    ours = partial(corrected, objective_fn=grpo, weight_fn=weight)
    theirs = partial(decoupled, cap=1.1)
    np.testing.assert_allclose(ours(log_probs, tokens), theirs(log_probs, tokens), rtol=1e-6)
    gradients = [jax.grad(lambda x, f=f: jnp.sum(f(x, tokens)))(log_probs) for f in (ours, theirs)]
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-7)


def test_where_the_sampler_is_the_trainers_own_nothing_is_corrected():
    log_probs, tokens = batch()
    tokens = tokens._replace(behavior_log_probs=tokens.proximal_log_probs)
    ours = corrected(log_probs, tokens, objective_fn=grpo, weight_fn=plain_weight)
    np.testing.assert_allclose(ours, grpo(log_probs, tokens), rtol=1e-6)


def test_the_weighted_score_is_unbiased_for_the_proximal_policy():
    mu, pi = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.25, 0.55])
    values = jnp.asarray([1.0, -2.0, 0.5], jnp.float32)

    def expected(logits):
        log_pi = jax.nn.log_softmax(logits)[:, None]
        old, here = (jnp.log(jnp.asarray(p, jnp.float32))[:, None] for p in (mu, pi))
        tokens = TokenBatch(values[:, None], jnp.ones((3, 1), bool), old, here, here)
        losses = corrected(log_pi, tokens, objective_fn=reinforce, weight_fn=plain_weight)
        return -jnp.sum(jnp.asarray(mu, jnp.float32) * losses[:, 0])

    logits = jnp.log(jnp.asarray(pi, jnp.float32))
    true = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * values))(logits)
    np.testing.assert_allclose(jax.grad(expected)(logits), true, atol=1e-6)


def test_masked_tokens_cost_nothing_whatever_they_hold():
    log_probs, tokens = batch()
    broken = jnp.where(tokens.mask, log_probs, -jnp.inf)
    loss = partial(corrected, objective_fn=grpo, weight_fn=unit_weight)
    np.testing.assert_array_equal(jnp.where(tokens.mask, 0, loss(broken, tokens)), 0)
    gradient = jax.grad(lambda x: jnp.sum(loss(x, tokens)))(broken)
    np.testing.assert_array_equal(jnp.where(tokens.mask, 0, gradient), 0)
    assert np.isfinite(gradient).all()


def test_the_positive_part_credits_rare_successes_most():
    rewards = jnp.asarray([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = [[0.75, 0, 0, 0], [0.25, 0.25, 0.25, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(positive_part(rewards), expected, atol=1e-7)
