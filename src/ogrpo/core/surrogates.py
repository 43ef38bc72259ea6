"""Surrogates `(ratio, advantages) -> objective`, to be maximised, per token [..., T].

A surrogate is where a trust region lives. Anything of this form can be the `surrogate_fn` of
`ogrpo.core.objectives.token_loss`; bind the rest with `functools.partial`.

Two families: those that differentiate through the ratio, and `score`, which differentiates through
log pi and leaves the ratio to a detached gate (`ogrpo.core.gates`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.core.checks import (
    Scalar,
    as_floats,
    check_at_least,
    check_axes,
    check_nonnegative,
    check_open,
)

SurrogateFn = Callable[[jax.Array, jax.Array], jax.Array]
GateFn = Callable[[jax.Array, jax.Array], jax.Array]


def ratio_surrogate(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
    """r a, no trust region. [..., T] -> [..., T].

    Source: TRPO (Schulman et al. 2015, arXiv:1502.05477), eq. 14. Unbiased for J(pi) - J(mu) at
    sequence level where pi << mu; its variance grows with chi^2(pi||mu).
    """
    check_axes("T", ratio=ratio, advantages=advantages)
    return ratio * advantages


def interval_surrogate(
    ratio: jax.Array, advantages: jax.Array, *, low: Scalar, high: Scalar
) -> jax.Array:
    """min(r a, clip(r, low, high) a): the form of every clip; no gradient where it binds.

    Args:
      ratio: [..., T] pi/mu, >= 0.
      advantages: [..., T].
      low: scalar or [..., T], the least ratio that a < 0 pushes down.
      high: scalar or [..., T], the largest ratio that a > 0 pushes up.

    Returns:
      [..., T] to be maximised.

    Raises:
      ValueError: shapes differ.
    """
    check_axes("T", ratio=ratio, advantages=advantages)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, low, high) * advantages)


def clipped_surrogate(
    ratio: jax.Array,
    advantages: jax.Array,
    *,
    eps_low: Scalar,
    eps_high: Scalar,
    center: Scalar = 1.0,
) -> jax.Array:
    """f_eps(r, r', a) = min(r a, clip(r, max(r' - eps_low, 0), r' + eps_high) a).

    Source: off-policy GRPO (Mroueh et al. 2025, arXiv:2505.22257), eq. 6; r' = 1 is PPO's clip
    (2017, eq. 7). Bias: a lower bound of r a, tight at r = r', where the slope is a. With the exact
    centre r' = pi_k/mu, sequence-level, raising its mean raises the true reward (theorem
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
    low, high = jnp.maximum(held - eps_low, 0), held + eps_high
    return interval_surrogate(ratio, advantages, low=low, high=high)


def decoupled_surrogate(
    ratio: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar, center: Scalar
) -> jax.Array:
    """min(r a, clip(r, r' (1 - eps_low), r' (1 + eps_high)) a): a band multiplicative about r'.

    Source: decoupled PPO (Hilton et al. 2022, arXiv:2110.00641), whose r' min(rho a, clip(rho, 1 +-
    eps) a) with rho = r/r' = pi/pi_k this is. Bounds r a from below like `clipped_surrogate`; the
    band narrows with r', where the additive one does not.

    Args:
      ratio: [..., T] pi/mu, >= 0.
      advantages: [..., T].
      eps_low: relative width below the centre, in [0, 1].
      eps_high: relative width above, >= 0.
      center: scalar or [..., T] r', held constant.

    Returns:
      [..., T] to be maximised.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    held = jax.lax.stop_gradient(jnp.asarray(center, ratio.dtype))
    low, high = held * (1 - eps_low), held * (1 + eps_high)
    return interval_surrogate(ratio, advantages, low=low, high=high)


def capped_surrogate(
    ratio: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar, cap: Scalar
) -> jax.Array:
    """min(min(r, cap) a, clip(r, 1 - eps_low, 1 + eps_high) a): the cap tames a < 0.

    Source: two-sided GRPO clip (INTELLECT-2, 2025, arXiv:2505.07291), delta there. Bounded: >= cap
    a for a < 0, if cap >= 1 + eps_high.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      eps_low: as in `clipped_surrogate`.
      eps_high: as in `clipped_surrogate`.
      cap: largest ratio, >= 0.

    Returns:
      [..., T] to be maximised.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high, cap=cap)
    clipped = jnp.clip(ratio, jnp.maximum(1 - eps_low, 0), 1 + eps_high)
    return jnp.minimum(jnp.minimum(ratio, cap) * advantages, clipped * advantages)


def dual_clipped_surrogate(
    ratio: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar, dual: Scalar
) -> jax.Array:
    """max(f_eps(r, 1, a), dual a) for a < 0, f_eps(r, 1, a) otherwise.

    Source: dual-clip PPO (Ye et al. 2020, arXiv:1912.09729), c = 3 there. Equals `capped_surrogate`
    with cap = dual where dual >= 1 + eps_high.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      eps_low: as in `clipped_surrogate`.
      eps_high: as in `clipped_surrogate`.
      dual: multiple of a below which the objective does not fall, >= 1.

    Returns:
      [..., T] to be maximised.
    """
    check_at_least(1, dual=dual)
    clipped = clipped_surrogate(ratio, advantages, eps_low=eps_low, eps_high=eps_high)
    return jnp.where(advantages < 0, jnp.maximum(clipped, dual * advantages), clipped)


def soft_surrogate(
    ratio: jax.Array, advantages: jax.Array, *, temperature_pos: Scalar, temperature_neg: Scalar
) -> jax.Array:
    """4 sigmoid(t (r - 1)) / t a, t by the sign of a: the slope at r = 1 is a, and fades smoothly.

    Source: SAPO (Gao et al. 2025, arXiv:2511.20347). The value at r = 1 is 2 a / t, not a.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      temperature_pos: t where a > 0, > 0.
      temperature_neg: t elsewhere, > 0; larger fades faster.

    Returns:
      [..., T] to be maximised.
    """
    check_open(float("inf"), temperature_pos=temperature_pos, temperature_neg=temperature_neg)
    temperature = jnp.where(advantages > 0, temperature_pos, temperature_neg)
    temperature = temperature.astype(ratio.dtype)
    return 4 * jax.nn.sigmoid(temperature * (ratio - 1)) / temperature * advantages


def score(
    ratio: jax.Array, advantages: jax.Array, *, log_probs: jax.Array, gate_fn: GateFn
) -> jax.Array:
    """sg(g(r, a)) a log pi: REINFORCE behind a gate.

    Source: Williams (1992) for g = 1. The gradient is sg(g) a grad log pi, so g = r is the gradient
    of r a, whatever the value.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      log_probs: [..., T], differentiated.
      gate_fn: `(ratio, advantages) -> [..., T]`, held constant.

    Returns:
      [..., T] to be maximised; 0 where the gate is shut or the advantage 0, even at log pi = -inf.
    """
    check_axes("T", ratio=ratio, advantages=advantages, log_probs=log_probs)
    weight = jax.lax.stop_gradient(gate_fn(ratio, advantages)) * advantages
    return weight * jnp.where(weight == 0, 0, as_floats(log_probs=log_probs)[0])
