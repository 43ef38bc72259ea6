"""Surrogates `(ratio, advantages) -> objective`, to be maximised, per token [..., T].

A surrogate is where a trust region lives. Anything of this form can be the `surrogate_fn` of
`ogrpo.core.objectives.token_loss`; bind the rest with `functools.partial`.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import check_nonnegative


def clipped_surrogate(
    ratio: jax.Array,
    advantages: jax.Array,
    *,
    eps_low: jax.Array | float,
    eps_high: jax.Array | float,
    center: jax.Array | float = 1.0,
) -> jax.Array:
    """f_eps(r, r', a) = min(r a, clip(r, max(r' - eps_low, 0), r' + eps_high) a).

    Source: off-policy GRPO (Mroueh et al. 2025), eq. 6; r' = 1 is PPO's clip (2017, eq. 7).
    Bias: a lower bound of r a, tight at r = r', where the slope is a. With the exact centre
    r' = pi_k/mu, sequence-level, raising its mean raises the true reward (theorem
    `minorise_maximise`); with r' = 1 off policy, or per token, it need not. For a < 0 it is
    unbounded below: the clip does not bound the ratio.

    Args:
      ratio: [..., T] pi/mu, >= 0.
      advantages: [..., T].
      eps_low: how far below the centre the ratio still counts, >= 0.
      eps_high: how far above, >= 0.
      center: scalar or [..., T] r', held constant.

    Returns:
      [..., T] to be maximised.

    Raises:
      ValueError: an eps is negative.

    Example:
      >>> clipped_surrogate(jnp.array([1.5]), jnp.array([2.0]), eps_low=0.2, eps_high=0.25)
      Array([2.5], dtype=float32)
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    held = jax.lax.stop_gradient(jnp.asarray(center, ratio.dtype))
    clipped = jnp.clip(ratio, jnp.maximum(held - eps_low, 0), held + eps_high)
    return jnp.minimum(ratio * advantages, clipped * advantages)
