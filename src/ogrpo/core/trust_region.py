"""KL(pi||mu) <= delta, three ways behind one interface, the state explicit.

    state = region.init()
    loss = mean(token_total(region.loss(state, log_probs, batch), batch.mask))
    state = region.update(state, region.measure(log_probs, batch))

`loss` is per token and differentiable; `measure` gives totals that add up over microbatches and
devices; `update` is pure. A region wraps any objective of `ogrpo.core.objectives`. A new one is
these four functions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.aggregate import Total, mean, token_total
from ogrpo.core.checks import Scalar, check_nonnegative
from ogrpo.core.divergences import behavior_kl
from ogrpo.core.gates import off_policy_sequence_mask
from ogrpo.core.masked import gate, masked_mean
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import log_ratio, moment_ratio

State = Any
"""Any pytree, as are the totals that a region measures: each region has its own of both."""
ObjectiveFn = Callable[..., jax.Array]


class TrustRegion(NamedTuple):
    """Four pure functions; `state` is any pytree and belongs to the caller."""

    init: Callable[[], State]
    loss: Callable[[State, jax.Array, TokenBatch], jax.Array]
    measure: Callable[[jax.Array, TokenBatch], Any]
    update: Callable[[State, Any], State]


def kl_total(log_probs: jax.Array, batch: TokenBatch) -> Total:
    """Token total of `behavior_kl`: an unbiased, non-negative estimate of KL(pi||mu) per token."""
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    return token_total(behavior_kl(delta), batch.mask)


def dual_penalty(
    objective_fn: ObjectiveFn, *, delta: Scalar, rate: Scalar, initial: Scalar
) -> TrustRegion:
    """Penalty: loss + lambda KL(pi||mu), lambda <- max(0, lambda + rate (KL - delta)).

    Source: projected dual ascent on the Lagrangian of TRPO's constraint. State: lambda, scalar.

    Args:
      objective_fn: `(log_probs, batch) -> [..., T]`.
      delta: the constraint, nats per token, >= 0.
      rate: dual step size, > 0.
      initial: first lambda, >= 0.

    Returns:
      TrustRegion.
    """
    check_nonnegative(delta=delta, rate=rate, initial=initial)

    def loss(multiplier: jax.Array, log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        distance = behavior_kl(log_ratio(log_probs, batch.behavior_log_probs, batch.mask))
        return objective_fn(log_probs, batch) + jax.lax.stop_gradient(multiplier) * distance

    def update(multiplier: jax.Array, measured: Total) -> jax.Array:
        return jnp.maximum(multiplier + rate * (mean(measured) - delta), 0)

    return TrustRegion(lambda: jnp.asarray(initial, float), loss, kl_total, update)


def sequence_mask(objective_fn: ObjectiveFn, *, delta: Scalar) -> TrustRegion:
    """Mask: sequences with mean_t KL estimate > delta cost nothing. State: none.

    The estimate is `behavior_kl` of the sequence's own tokens. Dropped tokens stay in the
    denominator; the gradient of a dropped sequence is 0, so it does not come back by itself.

    Args:
      objective_fn: `(log_probs, batch) -> [..., T]`.
      delta: nats per token, >= 0.

    Returns:
      TrustRegion with state ().
    """
    check_nonnegative(delta=delta)

    def kept(drift: jax.Array, batch: TokenBatch) -> jax.Array:
        far = masked_mean(behavior_kl(drift), batch.mask)
        return gate(far > delta, far)

    return _masking(objective_fn, kept)


def negatives_mask(objective_fn: ObjectiveFn, *, delta: Scalar) -> TrustRegion:
    """Mask: sequences with A < 0 and mean_t(log mu - log pi) > delta cost nothing. State: none.

    Source: the off-policy sequence mask of DeepSeek-V3.2 (2025, arXiv:2512.02556), eq. 9, which
    states no delta. Dropped tokens stay in the denominator.

    Args:
      objective_fn: `(log_probs, batch) -> [..., T]`.
      delta: nats per token, >= 0.

    Returns:
      TrustRegion with state ().
    """
    check_nonnegative(delta=delta)

    def kept(drift: jax.Array, batch: TokenBatch) -> jax.Array:
        return off_policy_sequence_mask(drift, batch.advantages, batch.mask, delta=delta)

    return _masking(objective_fn, kept)


def _masking(
    objective_fn: ObjectiveFn, kept_fn: Callable[[jax.Array, TokenBatch], jax.Array]
) -> TrustRegion:
    """Tokens cost what they do where `kept_fn(log pi - log mu, batch)` is 1, and nothing at 0."""

    def loss(_: tuple[()], log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        drift = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        kept = kept_fn(jax.lax.stop_gradient(drift), batch)
        return jnp.where(kept == 0, 0, kept * objective_fn(log_probs, batch))

    return TrustRegion(tuple, loss, kl_total, lambda state, _: state)


def adaptive_clip(
    objective_fn: ObjectiveFn,
    *,
    target: Scalar,
    rate: Scalar,
    initial: Scalar,
    smallest: Scalar,
    largest: Scalar,
    measure: Callable[[jax.Array, TokenBatch], Any] = kl_total,
    excess_fn: Callable[[Any, Scalar], jax.Array] | None = None,
) -> TrustRegion:
    """Clip width: eps <- clip(eps exp(-rate sign(KL - target)), smallest, largest). State: eps.

    Args:
      objective_fn: `(log_probs, batch, *, eps_low, eps_high) -> [..., T]`.
      target: of the measured quantity.
      rate: log-step, >= 0.
      initial: first eps.
      smallest: lower end of eps.
      largest: upper end of eps.
      measure: `(log_probs, batch) -> totals`; `kl_total` or `ess_totals`.
      excess_fn: `(measured, target) -> scalar`, positive where the region is too wide;
        None for the mean of a Total beyond the target, `ess_shortfall` for `ess_totals`.

    Returns:
      TrustRegion.
    """
    check_nonnegative(rate=rate, initial=initial, smallest=smallest, largest=largest)
    excess = excess_fn or (lambda measured, aim: mean(measured) - aim)

    def loss(eps: jax.Array, log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        return objective_fn(log_probs, batch, eps_low=eps, eps_high=eps)

    def update(eps: jax.Array, measured: Any) -> jax.Array:
        step = jnp.exp(-rate * jnp.sign(excess(measured, target)))
        return jnp.clip(eps * step, smallest, largest)

    return TrustRegion(partial(jnp.asarray, initial, float), loss, measure, update)


class EssTotals(NamedTuple):
    """Totals of rho and rho^2, from which the effective sample size comes after adding up."""

    first: Total
    second: Total


def ess_totals(log_probs: jax.Array, batch: TokenBatch) -> EssTotals:
    """Token totals of rho and rho^2, rho at most exp(20) (`moment_ratio`)."""
    ratio = moment_ratio(log_ratio(log_probs, batch.behavior_log_probs, batch.mask))
    return EssTotals(token_total(ratio, batch.mask), token_total(ratio**2, batch.mask))


def ess_shortfall(measured: EssTotals, target: Scalar) -> jax.Array:
    """target - ESS / n: positive where too few samples count; without any, ESS / n is 1."""
    second = mean(measured.second)
    nothing = second == 0
    share = mean(measured.first) ** 2 / jnp.where(nothing, 1, second)
    return target - jnp.where(nothing, 1, share)
