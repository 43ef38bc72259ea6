"""Losses whose ratio carries the gradient, with a trust region around it."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import surrogates
from ogrpo.core.checks import check_nonnegative
from ogrpo.core.masked import masked_mean
from ogrpo.core.objectives.base import (
    TokenBatch,
    exact_center,
    from_proximal,
    masked_batch,
    token_loss,
)
from ogrpo.core.ratios import log_ratio, mean_log_ratio, prefix_log_ratio
from ogrpo.core.surrogates import Scalar
from ogrpo.core.weights import truncated_weight


def grpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    beta: Scalar = 0.0,
) -> jax.Array:
    """GRPO: -min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A) + beta k3, rho = pi/mu per token.

    Source: Shao et al. (2024), eq. 3, which reduces with `sequence_mean`; PPO's clip.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    return token_loss(log_probs, batch, surrogate_fn=clip, beta=beta)


def off_policy_grpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    beta: Scalar = 0.0,
    center_fn: Callable[[TokenBatch], jax.Array] = exact_center,
) -> jax.Array:
    """Off-policy GRPO: -f_eps(pi/mu, r', A) + beta k3, with r' = pi_k/mu or 1 by `center_fn`.

    Source: Mroueh et al. (2025), eq. 6-8. The band is additive about r'; it never goes below 0.
    With `unit_center` this is `grpo`.
    """
    band = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    clip = partial(band, center=center_fn(batch))
    return token_loss(log_probs, batch, surrogate_fn=clip, beta=beta)


def decoupled(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    cap: Scalar = 2.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """-min(pi_k/mu, cap) min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), rho = pi/pi_k.

    Source: decoupled PPO (Hilton et al. 2022), its weight truncated as in TIS (Yao et al. 2025).
    The clip measures this update, the weight what came before it. Bias: the truncation's.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    return token_loss(
        log_probs,
        batch,
        surrogate_fn=clip,
        log_ratio_fn=from_proximal(batch),
        weight_fn=partial(truncated_weight, cap=cap),
        beta=beta,
    )


def dual_clip(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    dual: Scalar = 3.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """Dual-clip PPO: the clip of `grpo`, and never less than dual A where A < 0, + beta k3.

    Source: Ye et al. (2020, arXiv:1912.09729), eq. 5. The default PPO loss of verl and Trinity-RFT.
    """
    clip = partial(surrogates.dual_clipped_surrogate, eps_low=eps_low, eps_high=eps_high, dual=dual)
    return token_loss(log_probs, batch, surrogate_fn=clip, beta=beta)


def two_sided(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    delta: Scalar = 4.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """Two-sided clip: -min(min(rho, delta) A, clip(rho, 1 - eps_low, 1 + eps_high) A) + beta k3.

    Source: INTELLECT-2 (2025, arXiv:2505.07291), section 3.4. TRL's `delta`.
    """
    clip = partial(surrogates.capped_surrogate, eps_low=eps_low, eps_high=eps_high, cap=delta)
    return token_loss(log_probs, batch, surrogate_fn=clip, beta=beta)


def gspo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 3e-4,
    eps_high: Scalar = 4e-4,
    beta: Scalar = 0.0,
) -> jax.Array:
    """GSPO: the clip on rho = exp(mean_t D_t), with each token's own gradient.

    Source: Zheng et al. (2025), token form; reduces with `sequence_mean`.
    Bias: E_mu[rho] <= 1, so it is no importance weight.
    """
    clip = partial(surrogates.clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
    return token_loss(log_probs, batch, surrogate_fn=clip, log_ratio_fn=mean_log_ratio, beta=beta)


def ctpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    beta: Scalar = 0.0,
) -> jax.Array:
    """CTPO: the clip of rho_1..t = prod_{u <= t} rho_u at exp(-+eps sqrt t), t's own gradient.

    Source: Zhang et al. (2026, arXiv:2605.07331). Support: pi << mu. Bias: the prefix is corrected,
    what follows the token is not, so that it is unbiased where A_t is the value of the prefix.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    log_probs, batch = masked_batch(log_probs, batch)
    root = jnp.sqrt(jnp.cumsum(batch.mask, axis=-1).astype(log_probs.dtype))

    def prefix(new: jax.Array, old: jax.Array, mask: jax.Array) -> jax.Array:
        total = jax.lax.stop_gradient(prefix_log_ratio(new, old, mask))
        own = log_ratio(new, jax.lax.stop_gradient(new), mask)
        return total + jnp.where(jnp.isfinite(own), own, 0)

    def clip(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
        inside = jnp.clip(ratio, jnp.exp(-eps_low * root), jnp.exp(eps_high * root))
        return jnp.minimum(ratio * advantages, inside * advantages)

    return token_loss(log_probs, batch, surrogate_fn=clip, log_ratio_fn=prefix, beta=beta)


def sapo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    temperature_pos: Scalar = 1.0,
    temperature_neg: Scalar = 1.05,
    beta: Scalar = 0.0,
) -> jax.Array:
    """SAPO: -A 4 sigmoid(t (rho - 1)) / t, t by the sign of A.

    Source: Gao et al. (2025); reduces with `sequence_mean`.
    """
    soft = partial(
        surrogates.soft_surrogate,
        temperature_pos=temperature_pos,
        temperature_neg=temperature_neg,
    )
    return token_loss(log_probs, batch, surrogate_fn=soft, beta=beta)


def gmpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.4,
    eps_high: Scalar = 0.4,
    beta: Scalar = 0.0,
) -> jax.Array:
    """GMPO: -A exp(mean_t d_t), d_t = s min(s D_t, s clip(D_t, -eps_low, eps_high)), s = sign(A).

    Source: Zhao et al. (2025); eps in log space, +-0.4 there. Reduces with `sequence_mean`.
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
        log_probs,
        batch,
        surrogate_fn=surrogates.ratio_surrogate,
        log_ratio_fn=clipped_mean,
        beta=beta,
    )
