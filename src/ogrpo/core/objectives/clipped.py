"""Losses whose ratio carries the gradient, with a trust region around it."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import surrogates
from ogrpo.core.checks import Scalar, check_nonnegative, needed
from ogrpo.core.masked import masked_mean
from ogrpo.core.objectives.base import TokenBatch, exact_center, masked_batch, token_loss
from ogrpo.core.ratios import log_ratio, mean_log_ratio, prefix_log_ratio
from ogrpo.core.weights import truncated_weight

__all__ = [  # noqa: RUF022
    "grpo",
    "off_policy_grpo",
    "decoupled",
    "dual_clip",
    "two_sided",
    "gspo",
    "ctpo",
    "sapo",
    "gmpo",
]


def grpo(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """GRPO: -min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), rho = pi/mu per token.

    Source: Shao et al. (2024, arXiv:2402.03300), eq. 3, which reduces with `sequence_mean`; PPO's
    clip.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def off_policy_grpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    center_fn: Callable[[TokenBatch], jax.Array] = exact_center,
) -> jax.Array:
    """Off-policy GRPO: -f_eps(pi/mu, r', A), with r' = pi_k/mu or 1 by `center_fn`.

    Source: Mroueh et al. (2025, arXiv:2505.22257), eq. 6-8. The band is additive about r'; it never
    goes below 0. With `unit_center` this is `grpo`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below the centre r' the ratio still counts, >= 0.
      eps_high: how far above, >= 0.
      center_fn: `(batch) -> [..., T]`, the centre r'.

    Returns:
      [..., T], 0 where masked.
    """
    band = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    clip = partial(band, center=center_fn(batch))
    return token_loss(log_probs, batch, surrogate_fn=clip)


def decoupled(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    cap: Scalar = 2.0,
) -> jax.Array:
    """-min(pi_k/mu, cap) min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), rho = pi/pi_k.

    Source: decoupled PPO (Hilton et al. 2022, arXiv:2110.00641), its weight truncated as in TIS
    (Yao et al. 2025). The clip measures this update, the weight what came before it. Bias: the
    truncation's.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio pi/pi_k still counts, >= 0.
      eps_high: how far above 1, >= 0.
      cap: largest weight pi_k/mu, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    proximal = needed(batch.proximal_log_probs, "proximal_log_probs")
    return token_loss(
        log_probs,
        batch,
        surrogate_fn=clip,
        log_ratio_fn=lambda new, _, mask: log_ratio(new, proximal, mask),
        weight_fn=partial(truncated_weight, cap=cap),
    )


def dual_clip(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    dual: Scalar = 3.0,
) -> jax.Array:
    """Dual-clip PPO: the clip of `grpo`, and never less than dual A where A < 0.

    Source: Ye et al. (2020, arXiv:1912.09729), eq. 5. The default PPO loss of verl and Trinity-RFT.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.
      dual: multiple of A below which the gain does not fall where A < 0, >= 1.

    Returns:
      [..., T], 0 where masked.
    """
    clip = partial(surrogates.dual_clipped_surrogate, eps_low=eps_low, eps_high=eps_high, dual=dual)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def two_sided(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    delta: Scalar = 4.0,
) -> jax.Array:
    """Two-sided clip: -min(min(rho, delta) A, clip(rho, 1 - eps_low, 1 + eps_high) A).

    Source: INTELLECT-2 (2025, arXiv:2505.07291), section 3.4. TRL's `delta`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.
      delta: largest ratio where A < 0, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(delta=delta)
    clip = partial(surrogates.capped_surrogate, eps_low=eps_low, eps_high=eps_high, cap=delta)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def gspo(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 3e-4, eps_high: Scalar = 4e-4
) -> jax.Array:
    """GSPO: the clip on rho = exp(mean_t D_t), with each token's own gradient.

    Source: Zheng et al. (2025, arXiv:2507.18071), token form; reduces with `sequence_mean`. Bias:
    that of `ratios.mean_log_ratio`, so that rho is no importance weight.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the sequence's ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    return token_loss(log_probs, batch, surrogate_fn=clip, log_ratio_fn=mean_log_ratio)


def ctpo(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """CTPO: the clip of rho_1..t = prod_{u <= t} rho_u at exp(-+eps sqrt t), t's own gradient.

    Source: Zhang et al. (2026, arXiv:2605.07331). Support: pi << mu. Bias: the prefix is corrected,
    what follows the token is not, so that it is unbiased where A_t is the value of the prefix.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: width in log space below, times the root of the position, >= 0.
      eps_high: width above, likewise.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    log_probs, batch = masked_batch(log_probs, batch)
    root = jnp.sqrt(jnp.cumsum(batch.mask, axis=-1).astype(log_probs.dtype))

    def prefix(new: jax.Array, old: jax.Array, mask: jax.Array) -> jax.Array:
        total = jax.lax.stop_gradient(prefix_log_ratio(new, old, mask))
        token = log_ratio(new, jax.lax.stop_gradient(new), mask)
        return total + jnp.where(jnp.isfinite(token), token, 0)

    low, high = jnp.exp(-eps_low * root), jnp.exp(eps_high * root)
    clip = partial(surrogates.interval_surrogate, low=low, high=high)
    return token_loss(log_probs, batch, surrogate_fn=clip, log_ratio_fn=prefix)


def sapo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    temperature_pos: Scalar = 1.0,
    temperature_neg: Scalar = 1.05,
) -> jax.Array:
    """SAPO: -A 4 sigmoid(t (rho - 1)) / t, t by the sign of A.

    Source: Gao et al. (2025, arXiv:2511.20347); reduces with `sequence_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      temperature_pos: t where A > 0, > 0.
      temperature_neg: t elsewhere, > 0; larger fades faster.

    Returns:
      [..., T], 0 where masked.
    """
    soft = partial(
        surrogates.soft_surrogate, temperature_pos=temperature_pos, temperature_neg=temperature_neg
    )
    return token_loss(log_probs, batch, surrogate_fn=soft)


def gmpo(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.4, eps_high: Scalar = 0.4
) -> jax.Array:
    """GMPO: -A exp(mean_t d_t), d_t = s min(s D_t, s clip(D_t, -eps_low, eps_high)), s = sign(A).

    Source: Zhao et al. (2025, arXiv:2507.20673); eps in log space, +-0.4 there. Reduces with
    `sequence_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: clip of D_t below, in log space, >= 0.
      eps_high: clip above, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)

    def clipped_mean(new: jax.Array, old: jax.Array, mask: jax.Array) -> jax.Array:
        delta = log_ratio(new, old, mask)
        clipped = jnp.clip(delta, -eps_low, eps_high)
        rising = jnp.minimum(delta, clipped)
        falling = jnp.maximum(delta, clipped)
        picked = jnp.where(batch.advantages < 0, falling, rising)
        return jnp.where(mask, masked_mean(picked, mask), 0)

    return token_loss(
        log_probs, batch, surrogate_fn=surrogates.ratio_surrogate, log_ratio_fn=clipped_mean
    )
