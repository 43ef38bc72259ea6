"""Divergences: per-token estimators `(log_probs, ref_log_probs) -> [..., T]`, and exact ones.

x = log pi_ref - log pi at a token drawn from pi; Schulman, "Approximating KL divergence" (2020).
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats
from ogrpo.core.ratios import MAX_LOG_RATIO


def k1(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), first estimator: -x.

    Unbiased under y ~ pi, of either sign. As a loss with the samples fixed its expected gradient
    is 0: it regularises nothing.

    Args:
      log_probs: [..., T].
      ref_log_probs: [..., T].

    Returns:
      [..., T] in nats.
    """
    top, bottom = as_floats(log_probs=log_probs, ref_log_probs=ref_log_probs)
    return top - bottom


def k2(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), second estimator: x^2 / 2.

    Biased, >= 0. As a loss with the samples fixed, its gradient is unbiased for grad KL(pi||ref).

    Args and Returns: as `k1`.
    """
    return k1(log_probs, ref_log_probs) ** 2 / 2


def k3(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), third estimator: exp(x) - 1 - x.

    Source: GRPO (Shao et al. 2024), eq. 4. Unbiased under y ~ pi where ref << pi, >= 0; biased on
    unweighted samples of another policy. As a loss with the samples fixed, its gradient is that of
    KL(ref||pi), the other direction. exp is held constant beyond x = 80.

    Args and Returns: as `k1`.
    """
    x = -k1(log_probs, ref_log_probs)
    return jnp.expm1(jnp.minimum(x, MAX_LOG_RATIO)) - x
