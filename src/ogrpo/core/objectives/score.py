"""Losses in score form: REINFORCE behind a detached gate, no gradient through the ratio."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from ogrpo.core import gates, surrogates
from ogrpo.core.checks import Scalar, check_nonnegative
from ogrpo.core.objectives.base import TokenBatch, masked_batch, scored, token_loss
from ogrpo.core.ratios import exp_ratio, log_ratio, sequence_log_ratio
from ogrpo.core.traces import vtrace_weight

__all__ = [  # noqa: RUF022
    "reinforce",
    "cispo",
    "sequence_tis",
    "topr",
    "topr_token",
    "vespo",
    "sppo",
    "vtrace",
    "rec_one_side",
    "rec_one_side_is",
    "rec_two_side",
    "rec_two_side_is",
    "rec_ring",
    "rec_ring_is",
]


def reinforce(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """REINFORCE: -A log pi.

    Source: Williams (1992). Unbiased for the policy gradient on samples of pi under
    `sequence_sum_mean`; on others' samples it climbs E_mu[A log pi] instead.
    """
    return scored(log_probs, batch, gates.open_gate)


def cispo(
    log_probs: jax.Array, batch: TokenBatch, *, low: Scalar = 0.0, high: Scalar = 5.0
) -> jax.Array:
    """CISPO: -sg(clip(rho, low, high)) A log pi, bounds absolute.

    Source: MiniMax-M1 (2025, arXiv:2506.13585); high = 5 from ScaleRL (Khatri et al. 2025,
    arXiv:2510.13786). Reduces with `token_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: least ratio that weighs a token, >= 0.
      high: largest, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    return scored(log_probs, batch, partial(gates.clipped_gate, low=low, high=high))


def sequence_tis(log_probs: jax.Array, batch: TokenBatch, *, high: Scalar = 2.0) -> jax.Array:
    """REINFORCE, weighted: -sg(min(rho, high)) A log pi, rho by trajectory.

    Source: truncated importance sampling (Ionides 2008) by trajectory, as in verl 0.9,
    `bypass_pg_is`. Bias: -E_mu[(rho - high)_+ A grad log pi].

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      high: largest ratio that weighs a completion, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(high=high)
    gate_fn = partial(gates.clipped_gate, low=0.0, high=high)
    return scored(log_probs, batch, gate_fn, log_ratio_fn=sequence_log_ratio)


def topr(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """TOPR: -sg(a) A log pi, a = min(rho, 1) for A <= 0, else 1, rho by trajectory.

    Source: Le Roux et al. (2025, arXiv:2503.14286); reduces with `sequence_sum_mean`.
    """
    return scored(log_probs, batch, gates.tapered_gate, log_ratio_fn=sequence_log_ratio)


def topr_token(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """TOPR as its public code has it: `topr` with rho by token."""
    return scored(log_probs, batch, gates.tapered_gate)


def vespo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    power_pos: Scalar = 2.0,
    rate_pos: Scalar = 3.0,
    power_neg: Scalar = 3.0,
    rate_neg: Scalar = 2.0,
) -> jax.Array:
    """VESPO: -sg(W^k exp(lambda (1 - W))) A log pi, W by sequence, k and lambda by the sign of A.

    The weight is 1 at W = 1, and 0 far on either side. Source: VESPO (2026, arXiv:2602.10693),
    section 3.4; reduces with `token_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      power_pos: k where A >= 0.
      rate_pos: lambda where A >= 0.
      power_neg: k where A < 0.
      rate_neg: lambda where A < 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(
        power_pos=power_pos, rate_pos=rate_pos, power_neg=power_neg, rate_neg=rate_neg
    )

    def gate(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
        rising = advantages >= 0
        power, rate = jnp.where(rising, power_pos, power_neg), jnp.where(rising, rate_pos, rate_neg)
        return exp_ratio(xlogy(power, ratio) + rate * (1 - ratio))

    return scored(log_probs, batch, gate, log_ratio_fn=sequence_log_ratio)


def sppo(
    log_probs: jax.Array, batch: TokenBatch, *, low: Scalar = 1 / 1.3, high: Scalar = 1.3
) -> jax.Array:
    """sPPO: -A D 1[low <= rho <= high], D = log rho.

    Source: Vaswani et al. (2022, arXiv:2108.05828), the softmax surrogate with a clip.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: least ratio with a loss, >= 0.
      high: largest, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(low=low, high=high)
    band = partial(gates.band_gate, low=low, high=high)
    distance = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    surrogate = partial(surrogates.score, log_probs=distance, gate_fn=band)
    return token_loss(log_probs, batch, surrogate_fn=surrogate)


def rec_one_side(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-OneSide-NoIS: -A M log pi, M = `one_side_gate`.

    Source: Yao et al. (2025, arXiv:2509.24203). Wide: eps_low = 0.6, eps_high = 2.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    gate = partial(gates.one_side_gate, eps_low=eps_low, eps_high=eps_high)
    return scored(log_probs, batch, gate)


def rec_one_side_is(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-OneSide-IS: -A sg(rho) M log pi; the gradient is that of `grpo` away from the kinks.

    Source: Yao et al. (2025, arXiv:2509.24203).

    Args and Returns: as `rec_one_side`.
    """
    gate = partial(gates.one_side_gate, eps_low=eps_low, eps_high=eps_high)
    return scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def rec_two_side(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-TwoSide-NoIS: -A M log pi, M = `two_side_gate`.

    Source: Yao et al. (2025, arXiv:2509.24203).

    Args and Returns: as `rec_one_side`.
    """
    gate = partial(gates.two_side_gate, eps_low=eps_low, eps_high=eps_high)
    return scored(log_probs, batch, gate)


def rec_two_side_is(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-TwoSide-IS: -A sg(rho) M log pi, M = `two_side_gate`.

    Source: Yao et al. (2025, arXiv:2509.24203).

    Args and Returns: as `rec_one_side`.
    """
    gate = partial(gates.two_side_gate, eps_low=eps_low, eps_high=eps_high)
    return scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def rec_ring(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    outer_low: Scalar = 0.6,
    outer_high: Scalar = 2.0,
) -> jax.Array:
    """REC-Ring-NoIS: -A M log pi, M = `ring_gate`.

    Source: Yao et al. (2025, arXiv:2509.24203).

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: inner width below 1, >= 0.
      eps_high: inner width above 1, >= 0.
      outer_low: distance below 1 from which A >= 0 passes again.
      outer_high: distance above 1 from which A <= 0 passes again.

    Returns:
      [..., T], 0 where masked.
    """
    inner = partial(gates.ring_gate, eps_low=eps_low, eps_high=eps_high)
    gate = partial(inner, outer_low=outer_low, outer_high=outer_high)
    return scored(log_probs, batch, gate)


def rec_ring_is(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    outer_low: Scalar = 0.6,
    outer_high: Scalar = 2.0,
) -> jax.Array:
    """REC-Ring-IS: -A sg(rho) M log pi, M = `ring_gate`.

    Source: Yao et al. (2025, arXiv:2509.24203).

    Args and Returns: as `rec_ring`.
    """
    inner = partial(gates.ring_gate, eps_low=eps_low, eps_high=eps_high)
    gate = partial(inner, outer_low=outer_low, outer_high=outer_high)
    return scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def vtrace(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    decay: Scalar = 1.0,
    ratio_cap: Scalar = 1.0,
    trace_cap: Scalar = 1.0,
) -> jax.Array:
    """V-trace's policy gradient for one reward at the end: -w_t A log pi, w = `vtrace_weight`.

    Source: Espeholt et al. (2018, arXiv:1802.01561), section 4.2, with the group's baseline for the
    value function; reduces with `sequence_sum_mean`. Bias: see `ogrpo.core.traces.vtrace`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      decay: lambda in [0, 1].
      ratio_cap: rho-bar, >= 0.
      trace_cap: c-bar, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    distance = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    caps = {"decay": decay, "ratio_cap": ratio_cap, "trace_cap": trace_cap}
    weight = vtrace_weight(distance, batch.mask, **caps)
    return scored(log_probs, batch, lambda *_: weight)
