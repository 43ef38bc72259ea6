"""Corrections of samples of another policy beside a weight: two ratios, no drift, sampler sets.

`corrected` separates what an update does from what came before it, `score_centering` takes away
what moves pi whatever a token earned, and `log_kept_mass` is what a policy loses where it is cut to
what a sampler with top-p, top-k or min-p could draw.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_axes, check_mask, needed
from ogrpo.core.masked import masked_sum
from ogrpo.core.objectives import TokenBatch, WeightFn, drift
from ogrpo.core.ratios import exp_ratio

LEAST_TAIL = 1e-6
"""The least mass off the sampler's top tokens that `score_centering` divides by."""


def corrected(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    objective_fn: Callable[..., jax.Array],
    weight_fn: WeightFn,
) -> jax.Array:
    """w L(pi/pi_k), w = weight_fn(log pi_k - log mu, mask) held constant.

    Source: decoupled PPO (Hilton et al. 2022, arXiv:2110.00641) for any objective; `decoupled` is
    this for the clip. With the plain weight the gradient at pi = pi_k is that of samples from pi_k
    wherever the objective's is; other weights bring their own bias.

    Args:
      log_probs: [..., T].
      batch: the rest, [..., T]; its behaviour log-probs enter the weight alone.
      objective_fn: `(log_probs, batch) -> [..., T]`, an objective.
      weight_fn: as for `token_loss`.

    Returns:
      [..., T], 0 with zero gradient where masked.
    """
    weight = jax.lax.stop_gradient(weight_fn(drift(batch), batch.mask))
    proximal = needed(batch.proximal_log_probs, "proximal_log_probs")
    loss = weight * objective_fn(log_probs, batch._replace(behavior_log_probs=proximal))
    return jnp.where(batch.mask, loss, 0)


def score_centering(
    top_log_probs: jax.Array,
    sampler_log_probs: jax.Array,
    present: jax.Array,
    *,
    weight_fn: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """C = sum_{v in H} sg(m(v) - a p(v)) log p(v), to be added to a token's loss A times.

    Off policy E_mu[A d log pi] = E_mu[A] E_mu[d log pi] + Cov_mu(A, d log pi). The first term
    vanishes on policy alone: it moves pi by how far mu is from it, whatever a token earned.

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


def log_kept_mass(top_log_probs: jax.Array, present: jax.Array) -> jax.Array:
    """log pi(K) = log sum_{v in K} pi(v), of the set K of tokens that a sampler kept at a prefix.

    A sampler with top-p, top-k or min-p draws from mu_K(y) = mu(y) / mu(K). Then
    E_{mu_K}[pi / mu_K] = pi(K) < 1: that ratio is biased, and no weight mends it. With the policy
    over the same set, log pi_K(y) = log pi(y) - log pi(K), E_{mu_K}[pi_K / mu_K] = 1, and the
    gradient is that of the cut objective E_{pi_K}[A], K held.

    Source: the sampling mask of DeepSeek-V3.2 (2025, arXiv:2512.02556), section 3.3.
    Support: mu_K draws nothing outside of K.

    Args:
      top_log_probs: [..., T, K] log pi of the tokens in K, differentiated.
      present: [..., T, K] bool, False for entries that stand for no token.

    Returns:
      [..., T], at most 0 but for rounding; 0 with zero gradient where a place has no entry.

    Example:
      >>> pi = jnp.log(jnp.array([[0.5, 0.3, 0.2]]))
      >>> round(float(log_kept_mass(pi, jnp.array([[True, True, False]]))[0]), 4)
      -0.2231
    """
    check_axes("T, K", top=top_log_probs, present=present)
    check_mask(present, "present")
    (top,) = as_floats(top=top_log_probs)
    recorded = jnp.any(present, axis=-1)
    top = jnp.where(present, top, jnp.where(recorded, -jnp.inf, 0)[..., None])
    return jnp.where(recorded, jax.nn.logsumexp(top, axis=-1), 0)
