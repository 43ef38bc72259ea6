"""Losses that look at a divergence of the policies where others look at the ratio."""

from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import gates, surrogates
from ogrpo.core.checks import Scalar, check_nonnegative, needed
from ogrpo.core.divergences import KlFn, binary_kl, binary_tv
from ogrpo.core.masked import gate, masked_count, masked_mean
from ogrpo.core.objectives.base import TokenBatch, gated, masked_batch, scored, token_loss
from ogrpo.core.objectives.clipped import grpo
from ogrpo.core.ratios import MAX_LOG_RATIO, exp_ratio, log_ratio
from ogrpo.core.surrogates import GateFn

__all__ = [  # noqa: RUF022
    "m2po",
    "m2po_released",
    "dppo_tv",
    "dppo_kl",
    "prime_rl",
    "distill",
    "kl_cov",
    "clip_cov",
]


def m2po(log_probs: jax.Array, batch: TokenBatch, *, threshold: Scalar = 0.04) -> jax.Array:
    """M2PO: -M rho A; M drops the largest D^2 until the rest's mean is at most the threshold.

    Only steps that lead outward (A > 0, rho > 1 or A < 0, rho < 1) are ranked and dropped.

    Source: Zheng et al. (2025, arXiv:2510.01161), algorithm 1; reduces with `token_mean` over all
    tokens. Looks at the whole array: microbatches do not add up to the batch.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      threshold: largest mean of D^2 that is kept, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    outward = jnp.sign(delta) * jnp.sign(batch.advantages) > 0
    ranked = gates.second_moment_mask(delta, batch.mask & outward, threshold=threshold)
    kept = jnp.where(outward, ranked, 1)
    return gated(log_probs, batch, lambda *_: kept)


def dppo_tv(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.15,
    high: Scalar = 0.15,
    cap: Scalar = 10.0,
) -> jax.Array:
    """DPPO-TV: -sg(M min(rho, cap)) A log pi, M = 0 outward of |pi - mu| = high or low.

    Outward is a step to more of the token beyond high (A > 0), or to less beyond low (A < 0).

    Source: Qi et al. (2026, arXiv:2602.04879), binary TV; reduces with `token_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: largest |pi - mu| of a token that A < 0 pushes down, >= 0.
      high: of one that A > 0 pushes up, >= 0.
      cap: largest ratio that weighs a token, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    return _dppo(binary_tv, log_probs, batch, low, high, cap)


def dppo_kl(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.05,
    high: Scalar = 0.05,
    cap: Scalar = 10.0,
) -> jax.Array:
    """DPPO-KL: as `dppo_tv`, with KL(mu||pi) of "this token or another" for the divergence.

    Source: Qi et al. (2026, arXiv:2602.04879), binary KL; reduces with `token_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: largest divergence of a token that A < 0 pushes down, >= 0.
      high: of one that A > 0 pushes up, >= 0.
      cap: largest ratio that weighs a token, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    return _dppo(binary_kl, log_probs, batch, low, high, cap)


def prime_rl(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.2,
    high: Scalar = 0.2,
    coef: Scalar = 1e-3,
) -> jax.Array:
    """-M rho A + coef D^2: DPPO-TV's mask on the ratio, and a pull towards the sampler.

    Source: prime-rl's default loss (August 2026), after arXiv:2602.04879 and 2602.02276; the
    advantages are centred, and it reduces with `token_mean`. Infinite for infinite D.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: largest mu - pi of a token that A < 0 pushes down, >= 0.
      high: largest pi - mu of one that A > 0 pushes up, >= 0.
      coef: weight of the pull towards the sampler, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    fence = _fence(binary_tv, log_probs, batch, low, high)
    return gated(log_probs, batch, fence) + _pull(log_probs, batch, coef)


def distill(
    log_probs: jax.Array, batch: TokenBatch, *, low: Scalar = 0.2, coef: Scalar = 1e-3
) -> jax.Array:
    """-M rho sg(log ref - log pi) + coef D^2: the reverse KL to a teacher, the reference.

    M is shut where mu - pi of the token is beyond low. The advantages are not read. Its mean over
    samples of pi has the gradient of KL(pi||ref) by token. Infinite for infinite D.

    Source: on-policy distillation (Lu et al. 2025, Thinking Machines); the mask and the pull are
    prime-rl's (August 2026).

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: largest mu - pi of a token that is taught, >= 0.
      coef: weight of the pull towards the sampler, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(low=low)
    log_probs, batch = masked_batch(log_probs, batch)
    ref = needed(batch.ref_log_probs, "ref_log_probs")
    gain = jax.lax.stop_gradient(ref - log_probs)
    fallen = jnp.exp(batch.behavior_log_probs) - jnp.exp(log_probs)
    kept = gate(fallen > low, fallen)
    teach = batch._replace(advantages=gain)
    return gated(log_probs, teach, lambda *_: kept) + _pull(log_probs, batch, coef)


def kl_cov(
    log_probs: jax.Array, batch: TokenBatch, *, share: Scalar = 2e-4, coef: Scalar = 1.0
) -> jax.Array:
    """-rho A + coef |D| on the share of tokens whose (A - mean A)(log pi - mean log pi) is largest.

    Source: KL-Cov (Cui et al. 2025, arXiv:2505.22617), which slows the fall of the entropy where it
    falls fastest; at least one token. Looks at the whole array: microbatches do not add up.
    Infinite for infinite D.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      share: share of the tokens that are pulled, in [0, 1].
      coef: weight of the pull, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(coef=coef)
    log_probs, batch = masked_batch(log_probs, batch)
    covariance = jnp.where(batch.mask, _covariance(log_probs, batch), -jnp.inf)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    pulled = batch.mask & _first(-covariance, batch.mask, share)
    pull = jnp.where(pulled, coef * delta * jnp.sign(delta), 0)  # abs has the slope 1 at 0 in JAX
    return token_loss(log_probs, batch, surrogate_fn=surrogates.ratio_surrogate) + pull


def clip_cov(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    share: Scalar = 2e-4,
    cov_low: Scalar = 1.0,
    cov_high: Scalar = 5.0,
) -> jax.Array:
    """PPO's clip without a random share of the tokens with cov_low < covariance < cov_high.

    A token's covariance is (A - mean A)(log pi - mean log pi); those that the clip silences
    already are not among them. At least one is drawn, where there is one.

    Source: Clip-Cov (Cui et al. 2025, arXiv:2505.22617), which slows the fall of the entropy; reads
    `uniforms`. Looks at the whole array: microbatches do not add up.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.
      share: tokens left out, as a share of all, in [0, 1].
      cov_low: least covariance of a token that may be left out.
      cov_high: largest.

    Returns:
      [..., T], 0 where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    losses = grpo(log_probs, batch, eps_low=eps_low, eps_high=eps_high)
    uniforms, covariance = needed(batch.uniforms, "uniforms"), _covariance(log_probs, batch)
    ratio = exp_ratio(log_ratio(log_probs, batch.behavior_log_probs, batch.mask))
    inside = gates.one_side_gate(ratio, batch.advantages, eps_low=eps_low, eps_high=eps_high) != 0
    among = batch.mask & inside & (covariance > cov_low) & (covariance < cov_high)
    drawn = among & _first(jnp.where(among, uniforms, jnp.inf), batch.mask, share)
    return jnp.where(drawn & ~jnp.isnan(losses), 0, losses)


def _covariance(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """(A - mean A)(log pi - mean log pi) of each token, the means over all; held constant."""
    held = jax.lax.stop_gradient(log_probs)
    a, lp = (x - masked_mean(x, batch.mask, None) for x in (batch.advantages, held))
    return a * lp


def _first(values: jax.Array, mask: jax.Array, share: Scalar) -> jax.Array:
    """True for the smallest of all values: a share of the tokens, but one at least."""
    check_nonnegative(share=share)
    rank = jnp.argsort(jnp.argsort(values.ravel())).reshape(values.shape).astype(values.dtype)
    return rank < jnp.maximum(jnp.floor(share * masked_count(mask, values.dtype, None)), 1)


def m2po_released(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    threshold: Scalar = 0.04,
    eps_low: Scalar = 0.3,
    eps_high: Scalar = 0.5,
) -> jax.Array:
    """M2PO as its authors released it: PPO's clip at e^-+tau, mean min(D^2, tau^2) = threshold.

    The interval is never narrower than [1 - eps_low, 1 + eps_high].

    Source: the released code of
    arXiv:2510.01161; its algorithm 1 is `m2po`. Looks at the whole array.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      threshold: mean of min(D^2, tau^2), >= 0.
      eps_low: least width below 1, >= 0.
      eps_high: least width above 1, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(threshold=threshold, eps_low=eps_low, eps_high=eps_high)
    log_probs, batch = masked_batch(log_probs, batch)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    # The cap c of squares with mean min(D^2, c) = threshold; infinite if their mean is below it.
    held = jnp.clip(jax.lax.stop_gradient(delta), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    squares = jnp.sort(jnp.where(batch.mask, held**2, jnp.inf).ravel())
    n = masked_count(batch.mask, delta.dtype, None)
    before = jnp.arange(squares.size, dtype=delta.dtype)
    kept = jnp.where(before < n, squares, 0)
    earlier = jnp.cumsum(kept) - kept
    left = jnp.maximum(n - before, 1)
    reached = (earlier + left * kept >= n * threshold) & (before < n)
    first = jnp.argmax(reached)
    cap = (n * threshold - earlier[first]) / left[first]
    width = jnp.sqrt(jnp.where(jnp.any(reached), cap, jnp.inf))
    low = jnp.minimum(jnp.exp(-width), 1 - eps_low)
    high = jnp.maximum(jnp.exp(jnp.minimum(width, MAX_LOG_RATIO)), 1 + eps_high)
    clip = partial(surrogates.interval_surrogate, low=low, high=high)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def _pull(log_probs: jax.Array, batch: TokenBatch, coef: Scalar) -> jax.Array:
    """coef D^2 of each token, 0 where masked."""
    check_nonnegative(coef=coef)
    return coef * log_ratio(log_probs, batch.behavior_log_probs, batch.mask) ** 2


def _dppo(
    divergence_fn: KlFn,
    log_probs: jax.Array,
    batch: TokenBatch,
    low: Scalar,
    high: Scalar,
    cap: Scalar,
) -> jax.Array:
    """REINFORCE on tokens inside the fence, each weighed by its ratio of at most `cap`."""
    check_nonnegative(cap=cap)
    fence = _fence(divergence_fn, log_probs, batch, low, high)
    return scored(log_probs, batch, lambda r, a: fence(r, a) * jnp.clip(r, 0.0, cap))


def _fence(
    divergence_fn: KlFn, log_probs: jax.Array, batch: TokenBatch, low: Scalar, high: Scalar
) -> GateFn:
    """The gate that shuts outward steps of tokens whose policies differ too much already."""
    log_probs, batch = masked_batch(log_probs, batch)
    divergence = divergence_fn(log_probs, batch.behavior_log_probs)
    return partial(gates.divergence_gate, divergence=divergence, low=low, high=high)
