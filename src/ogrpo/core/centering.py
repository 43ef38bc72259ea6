"""Score centring: the drift of off-policy gradients, subtracted at each prefix.

Off policy E_mu[A d log pi] = E_mu[A] E_mu[d log pi] + Cov_mu(A, d log pi). The first term vanishes
on policy alone: it moves pi by how far mu is from it, whatever a token earned.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_axes, check_mask
from ogrpo.core.masked import masked_sum
from ogrpo.core.ratios import exp_ratio

LEAST_TAIL = 1e-6
WeightFn = Callable[[jax.Array], jax.Array]


def score_centering(
    top_log_probs: jax.Array,
    sampler_log_probs: jax.Array,
    present: jax.Array,
    *,
    weight_fn: WeightFn | None = None,
) -> jax.Array:
    """C = sum_{v in H} sg(m(v) - a p(v)) log p(v), to be added to a token's loss A times.

    H are the sampler's top k tokens at a prefix, p the policy's probabilities and q the sampler's.
    Off H, q is taken for rho p, rho = (1 - sum_H q) / max(1 - sum_H p, 1e-6). Without importance
    weights m = q and a = rho; for a loss -sg(w(p/q)) A log pi, m = q w(p/q) and a = rho w(1/rho).
    The gradient of C is then E_q[w d log p] but for the tail, as sum_v p d log p = 0.

    Source: score centring (2026, arXiv:2609.20807). Bias: A times the drift that is left at a
    prefix, sum_{v not in H} (q(v) w - a p(v)) d log p(v): 0 where H is the vocabulary, or where q
    is proportional to p off H. Not centred over prefixes: where A is known from the prefix alone,
    centring takes its whole gradient away.

    Args:
      top_log_probs: [..., T, K] log p of the sampler's top k tokens, differentiated.
      sampler_log_probs: [..., T, K] log q of the same tokens, as they were sampled from.
      present: [..., T, K] bool, False for entries that the sampler did not give; where a prefix has
        none, C is 0.
      weight_fn: `(ratio) -> weight`, the importance weight that the loss carries; None for 1.

    Returns:
      [..., T].

    Example:
      >>> q, present = jnp.log(jnp.array([[0.75, 0.25]])), jnp.array([[True, True]])
      >>> def centering(logits):
      ...     return score_centering(jax.nn.log_softmax(logits)[None], q, present)[0]
      >>> jax.grad(centering)(jnp.zeros(2))  # q - p
      Array([ 0.25, -0.25], dtype=float32)
    """
    check_axes("T, K", top=top_log_probs, sampler=sampler_log_probs, present=present)
    check_mask(present, "present")
    top, sampler = as_floats(top=top_log_probs, sampler=sampler_log_probs)
    top, sampler = (jnp.where(present, x, 0) for x in (top, sampler))
    p, q = jnp.exp(jax.lax.stop_gradient(top)), jnp.exp(sampler)
    left_p = jnp.maximum(1 - masked_sum(p, present), LEAST_TAIL)
    rho = jnp.maximum(1 - masked_sum(q, present), 0) / left_p
    m, a = q, rho
    if weight_fn is not None:
        m = q * weight_fn(exp_ratio(jax.lax.stop_gradient(top) - sampler))
        a = jnp.where(rho > 0, rho * weight_fn(1 / jnp.where(rho > 0, rho, 1)), 0)
    pull = jax.lax.stop_gradient(jnp.where(present, m - a * p, 0))
    return jnp.sum(pull * top, axis=-1)
