"""Detached weights `(log_ratio, mask) -> weight`, and how many samples they leave.

The log-ratio of a weight is proximal over behaviour: it corrects for staleness and for the mismatch
of sampler and trainer. Use one only with a surrogate whose ratio starts at the proximal policy, or
the same correction is applied twice.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import check_axes, check_mask, check_nonnegative
from ogrpo.core.masked import masked_count
from ogrpo.core.ratios import exp_ratio


def unit_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """No correction: w = 1. [..., T] -> [..., T]. Biased whenever the two policies differ."""
    check_axes("T", log_ratio=log_ratio, mask=mask)
    return jnp.ones_like(log_ratio)


def plain_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """Importance weight: w = rho = exp(D).

    Unbiased, E_mu[rho f] = E_pi[f], where pi << mu; n Var = E_mu[rho^2 f^2] - J^2.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool.

    Returns:
      [..., T] detached.
    """
    check_axes("T", log_ratio=log_ratio, mask=mask)
    return jax.lax.stop_gradient(exp_ratio(log_ratio))


def truncated_weight(
    log_ratio: jax.Array,
    mask: jax.Array,
    *,
    cap: jax.Array | float,
    floor: jax.Array | float = 0.0,
) -> jax.Array:
    """Truncated importance weight: w = clip(rho, floor, cap).

    Source: Ionides (2008); TIS (Yao et al. 2025) with cap 2.
    Bias: E_mu[(floor - rho)_+ f] - E_mu[(rho - cap)_+ f]; never upward for f >= 0 and floor = 0.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool.
      cap: largest weight.
      floor: smallest weight.

    Returns:
      [..., T] detached.
    """
    check_nonnegative(cap=cap, floor=floor)
    return jnp.clip(plain_weight(log_ratio, mask), floor, cap)


def ess(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Kish's effective sample size: (sum w)^2 / sum w^2, over the last axis.

    Between 1 and the number kept; scale-free; n / (1 + CV^2). Near n while a run collapses: it says
    how uneven the weights are, not whether they are right.

    Args:
      log_weights: [..., n] unnormalised. +inf entries share the whole weight between them.
      mask: [..., n] bool.

    Returns:
      [...]; 0 where nothing is kept or every weight is 0.
    """
    check_axes("n", log_weights=log_weights, mask=mask)
    check_mask(mask)
    kept = jnp.where(mask, jnp.minimum(log_weights, jnp.finfo(log_weights.dtype).max), -jnp.inf)
    top = jnp.max(kept, axis=-1, keepdims=True)
    weights = jnp.exp(kept - jnp.where(jnp.isneginf(top), 0, top))
    squares = jnp.sum(weights**2, axis=-1)
    return jnp.sum(weights, axis=-1) ** 2 / jnp.where(squares == 0, 1, squares)


def ess_fraction(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Effective sample size over the number kept, in [0, 1]. [..., n] -> [...]."""
    count = masked_count(mask, log_weights.dtype)[..., 0]
    return ess(log_weights, mask) / jnp.maximum(count, 1)
