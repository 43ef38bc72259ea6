"""The generic loss and its named presets: `f(log_probs, batch, *, knobs) -> loss per token`.

    ratio -> surrogate -> weight -> + beta * KL

Presets bind the functions and carry the literature's defaults; `OBJECTIVES` names them for the
command line. Nothing is reduced here: see `ogrpo.core.aggregate`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_axes, check_mask, check_nonnegative
from ogrpo.core.divergences import k3
from ogrpo.core.ratios import exp_ratio, log_ratio
from ogrpo.core.surrogates import clipped_surrogate
from ogrpo.core.weights import unit_weight

Scalar = jax.Array | float
SurrogateFn = Callable[[jax.Array, jax.Array], jax.Array]
LogRatioFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
WeightFn = Callable[[jax.Array, jax.Array], jax.Array]
KlFn = Callable[[jax.Array, jax.Array], jax.Array]


class TokenBatch(NamedTuple):
    """What a loss knows about the tokens besides pi_theta; every field [..., T]."""

    advantages: jax.Array
    """Already spread over the tokens."""
    mask: jax.Array
    """Bool, True where a token counts."""
    behavior_log_probs: jax.Array
    """What the sampler drew with."""
    proximal_log_probs: jax.Array
    """The trainer's own at the start of the update."""
    ref_log_probs: jax.Array
    """The policy not to stray from; anything finite where beta is 0."""


def token_loss(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    surrogate_fn: SurrogateFn,
    log_ratio_fn: LogRatioFn = log_ratio,
    weight_fn: WeightFn = unit_weight,
    kl_fn: KlFn = k3,
    beta: Scalar = 0.0,
) -> jax.Array:
    """Loss per token: -w surrogate(rho, A) + beta KL.

    rho = exp(log_ratio_fn(log_probs, behavior_log_probs, mask)) carries the gradient; the weight
    w = weight_fn(log pi_k - log mu, mask) does not.

    Args:
      log_probs: [..., T] log pi_theta, the only differentiated argument.
      batch: the rest, [..., T].
      surrogate_fn: `(ratio, advantages) -> [..., T]`, to be maximised.
      log_ratio_fn: `(log_probs, behavior_log_probs, mask) -> [..., T]`.
      weight_fn: `(log_ratio, mask) -> [..., T]`, with rho relative to the proximal policy only.
      kl_fn: `(log_probs, ref_log_probs) -> [..., T]`.
      beta: weight of the KL term, >= 0.

    Returns:
      [..., T], 0 with zero gradient where masked.

    Raises:
      ValueError: shapes differ, the mask is not bool, or beta is negative.
    """
    log_probs, batch = _masked(log_probs, batch)
    check_nonnegative(beta=beta)
    ratio = exp_ratio(log_ratio_fn(log_probs, batch.behavior_log_probs, batch.mask))
    gain = surrogate_fn(ratio, batch.advantages)
    drift = log_ratio(batch.proximal_log_probs, batch.behavior_log_probs, batch.mask)
    loss = beta * kl_fn(log_probs, batch.ref_log_probs) - weight_fn(drift, batch.mask) * gain
    return jnp.where(batch.mask, loss, 0)


def exact_center(batch: TokenBatch) -> jax.Array:
    """r' = sg(pi_k / mu), the centre at which the clipped surrogate minorises. [..., T]."""
    drift = log_ratio(batch.proximal_log_probs, batch.behavior_log_probs, batch.mask)
    return jax.lax.stop_gradient(exp_ratio(drift))


def unit_center(batch: TokenBatch) -> jax.Array:
    """r' = 1: the approximation pi_k ~ mu, under which improvement can fail. [..., T]."""
    return jnp.ones_like(as_floats(advantages=batch.advantages)[0])


def score(ratio: jax.Array, advantages: jax.Array, *, log_probs: jax.Array) -> jax.Array:
    """A log pi, the REINFORCE surrogate; the ratio is not used. [..., T]."""
    check_axes("T", ratio=ratio, advantages=advantages, log_probs=log_probs)
    return advantages * as_floats(log_probs=log_probs)[0]


def reinforce(log_probs: jax.Array, batch: TokenBatch, *, beta: Scalar = 0.0) -> jax.Array:
    """REINFORCE: -A log pi + beta k3.

    Source: Williams (1992). Unbiased for the policy gradient on samples of pi under
    `sequence_sum_mean`; on others' samples it climbs E_mu[A log pi] instead.
    """
    return token_loss(log_probs, batch, surrogate_fn=partial(score, log_probs=log_probs), beta=beta)


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
    clip = partial(clipped_surrogate, eps_low=eps_low, eps_high=eps_high)
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
    """
    clip = partial(clipped_surrogate, center=center_fn(batch), eps_low=eps_low, eps_high=eps_high)
    return token_loss(log_probs, batch, surrogate_fn=clip, beta=beta)


OBJECTIVES: dict[str, Callable[..., jax.Array]] = {
    "reinforce": reinforce,
    "grpo": grpo,
    "off_policy_grpo": off_policy_grpo,
}
"""Name -> `f(log_probs, batch, *, knobs)`, for a command line to choose from."""


def _masked(log_probs: jax.Array, batch: TokenBatch) -> tuple[jax.Array, TokenBatch]:
    check_axes("T", log_probs=log_probs, **batch._asdict())
    check_mask(batch.mask)
    numbers = {**batch._asdict(), "log_probs": log_probs}
    mask = numbers.pop("mask")
    kept = [jnp.where(mask, array, 0) for array in as_floats(**numbers)]
    fields = dict(zip(numbers, kept, strict=True))
    return fields.pop("log_probs"), TokenBatch(mask=mask, **fields)
