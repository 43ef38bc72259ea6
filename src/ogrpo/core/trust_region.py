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
from ogrpo.core.masked import gate, masked_mean
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import log_ratio

RegionState = Any
"""Any pytree: each region has its own."""
ObjectiveFn = Callable[..., jax.Array]


class TrustRegion(NamedTuple):
    """Four pure functions; `state` is any pytree and belongs to the caller."""

    init: Callable[[], RegionState]
    loss: Callable[[RegionState, jax.Array, TokenBatch], jax.Array]
    measure: Callable[[jax.Array, TokenBatch], Any]
    update: Callable[[RegionState, Any], RegionState]


def kl_total(log_probs: jax.Array, batch: TokenBatch) -> Total:
    """Token total of `behavior_kl`: KL(pi||mu) of each token's law, at prefixes that mu drew."""
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

    def loss(_: tuple[()], log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        drift = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        far = masked_mean(behavior_kl(jax.lax.stop_gradient(drift)), batch.mask)
        kept = gate(far > delta, far)
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
) -> TrustRegion:
    """Clip width: eps <- clip(eps exp(-rate sign(KL - target)), smallest, largest). State: eps.

    Args:
      objective_fn: `(log_probs, batch, *, eps_low, eps_high) -> [..., T]`.
      target: of KL(pi||mu), nats per token.
      rate: log-step, >= 0.
      initial: first eps.
      smallest: lower end of eps.
      largest: upper end of eps.
    """
    check_nonnegative(rate=rate, initial=initial, smallest=smallest, largest=largest)

    def loss(eps: jax.Array, log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        return objective_fn(log_probs, batch, eps_low=eps, eps_high=eps)

    def update(eps: jax.Array, measured: Total) -> jax.Array:
        step = jnp.exp(-rate * jnp.sign(mean(measured) - target))
        return jnp.clip(eps * step, smallest, largest)

    return TrustRegion(partial(jnp.asarray, initial, float), loss, kl_total, update)
