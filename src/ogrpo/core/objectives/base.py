"""Parts of every named loss: the batch it reads, the generic loss, its two gated forms."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core import surrogates
from ogrpo.core.checks import (
    Scalar,
    as_floats,
    check_axes,
    check_mask,
    check_nonnegative,
    is_zero,
    needed,
)
from ogrpo.core.divergences import KlFn, k3
from ogrpo.core.masked import masked_count
from ogrpo.core.ratios import exp_ratio, log_ratio
from ogrpo.core.surrogates import GateFn, SurrogateFn

__all__ = [
    "LogRatioFn",
    "TokenBatch",
    "TokenLossFn",
    "WeightFn",
    "drift",
    "evenly",
    "exact_center",
    "gated",
    "masked_batch",
    "per_sequence",
    "scored",
    "token_loss",
    "token_weights",
    "unit_center",
]

LogRatioFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
WeightFn = Callable[[jax.Array, jax.Array], jax.Array]


class TokenBatch(NamedTuple):
    """The tokens of a batch as a loss reads them besides pi_theta; every field [..., T].

    `mu` is the behaviour policy (alpha in arXiv:2505.22257), `pi_k` the proximal one.
    """

    advantages: jax.Array
    """Already spread over the tokens."""
    mask: jax.Array
    """Bool, True where a token counts."""
    behavior_log_probs: jax.Array
    """Log-probs that the sampler drew the tokens with."""
    proximal_log_probs: jax.Array | None = None
    """The trainer's log-probs at the start of the update; None where no loss reads them."""
    ref_log_probs: jax.Array | None = None
    """Log-probs of the reference policy; None where beta is 0 and no loss reads them."""
    weights: jax.Array | None = None
    """The user's own factor of each token's gain, held constant; None for 1."""
    entropy: jax.Array | None = None
    """Entropy of pi_theta's distribution at the token, differentiable; None where not read."""
    uniforms: jax.Array | None = None
    """A uniform number in [0, 1) for each token; None where no loss needs them."""


TokenLossFn = Callable[[jax.Array, TokenBatch], jax.Array]


def token_loss(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    surrogate_fn: SurrogateFn,
    log_ratio_fn: LogRatioFn = log_ratio,
    weight_fn: WeightFn | None = None,
    kl_fn: KlFn = k3,
    beta: Scalar = 0.0,
) -> jax.Array:
    """Loss per token: -u w surrogate(rho, A) + beta KL.

    rho = exp(log_ratio_fn(log_probs, behavior_log_probs, mask)) carries the gradient; the weight
    w = weight_fn(log pi_k - log mu, mask) does not, and leaves the KL term alone; nor does the
    batch's own u = weights.

    Args:
      log_probs: [..., T] log pi_theta, the only differentiated argument.
      batch: the rest, [..., T].
      surrogate_fn: `(ratio, advantages) -> [..., T]`, to be maximised.
      log_ratio_fn: `(log_probs, behavior_log_probs, mask) -> [..., T]`.
      weight_fn: `(log_ratio, mask) -> [..., T]`, with rho relative to the proximal policy only;
        None for 1.
      kl_fn: `(log_probs, ref_log_probs) -> [..., T]`.
      beta: weight of the KL term, >= 0.

    Returns:
      [..., T], 0 with zero gradient where masked. Finite for any log-ratio up to infinity, except
      that a token of zero probability has infinite cost: log pi = -inf under `score` where its gate
      is open, and the reference's -inf under `k1`, `k2`, `k3`.

    Raises:
      ValueError: shapes differ, the mask is not bool, or beta is negative.

    Example:
      >>> old = jnp.log(jnp.array([0.5, 0.5]))
      >>> batch = TokenBatch(jnp.array([1.0, 1.0]), jnp.array([True, False]), old, old, old)
      >>> def trust(ratio, advantages):
      ...     return jnp.minimum(ratio, 1.5) * advantages
      >>> token_loss(jnp.log(jnp.array([0.8, 0.8])), batch, surrogate_fn=trust)
      Array([-1.5,  0. ], dtype=float32)
    """
    log_probs, batch = masked_batch(log_probs, batch)
    check_nonnegative(beta=beta)
    ratio = exp_ratio(log_ratio_fn(log_probs, batch.behavior_log_probs, batch.mask))
    gain = surrogate_fn(ratio, batch.advantages)
    weight = jnp.ones_like(gain) if weight_fn is None else weight_fn(drift(batch), batch.mask)
    loss = -weight * token_weights(batch) * gain
    if not is_zero(beta):
        loss = loss + beta * kl_fn(log_probs, needed(batch.ref_log_probs, "ref_log_probs"))
    return jnp.where(batch.mask, loss, 0)


def drift(batch: TokenBatch) -> jax.Array:
    """log pi_k - log mu, how far the sampler was from the start of the update. [..., T]."""
    proximal = needed(batch.proximal_log_probs, "proximal_log_probs")
    return log_ratio(proximal, batch.behavior_log_probs, batch.mask)


def exact_center(batch: TokenBatch) -> jax.Array:
    """r' = sg(pi_k / mu), the centre at which the clipped surrogate minorises. [..., T]."""
    return jax.lax.stop_gradient(exp_ratio(drift(batch)))


def unit_center(batch: TokenBatch) -> jax.Array:
    """r' = 1: the approximation pi_k ~ mu, under which improvement can fail. [..., T]."""
    return jnp.ones_like(as_floats(advantages=batch.advantages)[0])


def token_weights(batch: TokenBatch) -> jax.Array | float:
    """The user's factors u, held constant; 1 where there are none. [..., T]."""
    return 1.0 if batch.weights is None else jax.lax.stop_gradient(batch.weights)


def per_sequence(batch: TokenBatch) -> jax.Array:
    """The advantage of each completion, over whose tokens it is constant. [..., G, T] -> [..., G].

    0 of a completion without a token.
    """
    check_axes("G, T", advantages=batch.advantages, mask=batch.mask)
    advantages = as_floats(advantages=batch.advantages)[0]
    value = jnp.max(advantages, axis=-1, where=batch.mask, initial=-jnp.inf)  # a mean would round
    return jnp.where(jnp.any(batch.mask, axis=-1), value, 0)


def evenly(losses: jax.Array, batch: TokenBatch) -> jax.Array:
    """u L / |y| at each token of a completion y with the loss L, 0 where masked; u = weights.

    The inverse of a sum over tokens: `sequence_sum` gives the completions' losses again.

    Args:
      losses: [..., G, 1], or [..., G, T] with the same value at all tokens.
      batch: its mask and weights are read.

    Returns:
      [..., G, T].
    """
    count = masked_count(batch.mask, losses.dtype)
    return jnp.where(batch.mask, token_weights(batch) * (losses / jnp.maximum(count, 1)), 0)


def scored(
    log_probs: jax.Array,
    batch: TokenBatch,
    gate_fn: GateFn,
    *,
    log_ratio_fn: LogRatioFn = log_ratio,
) -> jax.Array:
    """Score form: -sg(g(rho, A)) A log pi: REINFORCE behind a gate.

    Source: Williams (1992) for g = 1. The gradient is sg(g) A grad log pi, so that g = rho gives
    that of rho A.

    Args:
      log_probs: [..., T].
      batch: the rest, [..., T].
      gate_fn: `(ratio, advantages) -> [..., T]`, held constant.
      log_ratio_fn: as for `token_loss`.

    Returns:
      [..., T], 0 with zero gradient where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    return token_loss(
        log_probs,
        batch,
        surrogate_fn=partial(surrogates.score, log_probs=log_probs, gate_fn=gate_fn),
        log_ratio_fn=log_ratio_fn,
    )


def gated(log_probs: jax.Array, batch: TokenBatch, gate_fn: GateFn) -> jax.Array:
    """Ratio form: -sg(g(rho, A)) rho A. Args and Returns: as `scored`."""

    def inside(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
        held = jax.lax.stop_gradient(gate_fn(ratio, advantages))
        return held * surrogates.ratio_surrogate(ratio, advantages)

    return token_loss(log_probs, batch, surrogate_fn=inside)


def masked_batch(log_probs: jax.Array, batch: TokenBatch) -> tuple[jax.Array, TokenBatch]:
    """Log-probs and batch with 0 wherever the mask is False, whatever lay there.

    Start a loss of your own with it where the loss closes over log-probs or over the batch: what
    lies in padding is arbitrary, and 0 * NaN would survive a later mask in the gradient.

    Args:
      log_probs: [..., T].
      batch: [..., T]; halves are widened to float32.

    Returns:
      Both, of the same shapes.

    Raises:
      ValueError: shapes differ, the mask is not bool, or an array is not floating point.

    Example:
      >>> raw = jnp.array([-1.0, jnp.nan])
      >>> batch = TokenBatch(raw, jnp.array([True, False]), raw, raw, raw)
      >>> masked_batch(raw, batch)[0]
      Array([-1.,  0.], dtype=float32)
    """
    arrays = {name: array for name, array in batch._asdict().items() if array is not None}
    check_axes("T", log_probs=log_probs, **arrays)
    check_mask(batch.mask)
    numbers = {**arrays, "log_probs": log_probs}
    mask = numbers.pop("mask")
    kept = [jnp.where(mask, array, 0) for array in as_floats(**numbers)]
    fields = dict(zip(numbers, kept, strict=True))
    return fields.pop("log_probs"), TokenBatch(mask=mask, **fields)
