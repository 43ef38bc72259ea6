"""Losses per token: the generic one, what it takes, and the literature's named ones.

    ratio -> surrogate -> weight -> + beta * KL

Every named loss is `f(log_probs, batch, *, knobs) -> [..., T]`, with the literature's values as
defaults: 0 with zero gradient where masked, and a ValueError for shapes that differ, a mask that is
not bool, or a negative knob. Nothing is reduced here, and no advantage is computed:
`ogrpo.core.algorithms` has the whole methods. A loss of whole sequences is spread over their tokens
so that the reduction of its paper restores it. A KL term to the reference is `token_loss`'s, or the
method's (`Algorithm.kl_loss`): the named losses have none.

Every ratio is over `behavior_log_probs`. For the trainer's own start of the update instead, use
`decoupled` or `batch._replace(behavior_log_probs=batch.proximal_log_probs)`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core import gates, surrogates
from ogrpo.core.checks import (
    Scalar,
    as_floats,
    check_axes,
    check_group,
    check_mask,
    check_nonnegative,
    is_zero,
    needed,
)
from ogrpo.core.divergences import KlFn, binary_kl, binary_tv, k2, k3
from ogrpo.core.masked import gate, masked_count, masked_mean, masked_sum
from ogrpo.core.ratios import (
    MAX_LOG_RATIO,
    exp_ratio,
    log_ratio,
    mean_log_ratio,
    prefix_log_ratio,
    sequence_log_ratio,
)
from ogrpo.core.surrogates import GateFn, SurrogateFn
from ogrpo.core.traces import vtrace_weight
from ogrpo.core.weights import truncated_weight

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
    """What the sampler drew with."""
    proximal_log_probs: jax.Array | None = None
    """The trainer's own at the start of the update; None where no loss reads them."""
    ref_log_probs: jax.Array | None = None
    """The policy not to stray from; None where beta is 0."""
    weights: jax.Array | None = None
    """The user's own factor of each token's gain, held constant; None for 1."""


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


def from_proximal(batch: TokenBatch, log_ratio_fn: LogRatioFn = log_ratio) -> LogRatioFn:
    """A `log_ratio_fn` whose denominator is pi_k, whatever the batch's behaviour policy was."""
    proximal = needed(batch.proximal_log_probs, "proximal_log_probs")
    return lambda new, _, mask: log_ratio_fn(new, proximal, mask)


def token_weights(batch: TokenBatch) -> jax.Array | float:
    """The user's factors u, held constant; 1 where there are none. [..., T]."""
    return 1.0 if batch.weights is None else jax.lax.stop_gradient(batch.weights)


def per_sequence(batch: TokenBatch) -> jax.Array:
    """The advantage of each completion, over whose tokens it is constant. [..., G, T] -> [..., G].

    0 of a completion without a token.
    """
    check_axes("G, T", advantages=batch.advantages, mask=batch.mask)
    return masked_mean(as_floats(advantages=batch.advantages)[0], batch.mask)[..., 0]


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


def gated(
    log_probs: jax.Array,
    batch: TokenBatch,
    gate_fn: GateFn,
    *,
    surrogate_fn: SurrogateFn = surrogates.ratio_surrogate,
) -> jax.Array:
    """Ratio form: -sg(g(rho, A)) surrogate(rho, A): a surrogate behind a gate.

    Args and Returns: as `scored`; the surrogate is rho A unless given.
    """
    inside = partial(surrogates.gated, surrogate_fn=surrogate_fn, gate_fn=gate_fn)
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


# Losses in score form: REINFORCE behind a detached gate, no gradient through the ratio.


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
      low: least ratio that weighs a token.
      high: largest.

    Returns:
      [..., T], 0 where masked.
    """
    return scored(log_probs, batch, partial(gates.clipped_gate, low=low, high=high))


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

    Source: VESPO (2026, arXiv:2602.10693), section 3.4; reduces with `token_mean`.

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
    gate = partial(
        gates.concentrated_gate,
        power_pos=power_pos,
        rate_pos=rate_pos,
        power_neg=power_neg,
        rate_neg=rate_neg,
    )
    return scored(log_probs, batch, gate, log_ratio_fn=sequence_log_ratio)


def sppo(
    log_probs: jax.Array, batch: TokenBatch, *, low: Scalar = 1 / 1.3, high: Scalar = 1.3
) -> jax.Array:
    """sPPO: -A D 1[low <= rho <= high], D = log rho.

    Source: Vaswani et al. (2022, arXiv:2108.05828), the softmax surrogate with a clip.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: least ratio with a loss.
      high: largest.

    Returns:
      [..., T], 0 where masked.
    """
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


# Losses whose ratio carries the gradient, with a trust region around it.


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
    return token_loss(
        log_probs,
        batch,
        surrogate_fn=clip,
        log_ratio_fn=from_proximal(batch),
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
    """Dual-clip PPO: the clip of `grpo`, and never less than dual A where A < 0,.

    Source: Ye et al. (2020, arXiv:1912.09729), eq. 5. The default PPO loss of verl and Trinity-RFT.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      eps_low: how far below 1 the ratio still counts, >= 0.
      eps_high: how far above 1, >= 0.
      dual: multiple of A below which the gain does not fall where A < 0, > 1.

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
      delta: largest ratio where A < 0.

    Returns:
      [..., T], 0 where masked.
    """
    clip = partial(surrogates.capped_surrogate, eps_low=eps_low, eps_high=eps_high, cap=delta)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def gspo(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 3e-4, eps_high: Scalar = 4e-4
) -> jax.Array:
    """GSPO: the clip on rho = exp(mean_t D_t), with each token's own gradient.

    Source: Zheng et al. (2025, arXiv:2507.18071), token form; reduces with `sequence_mean`. Bias:
    E_mu[rho] <= 1, so it is no importance weight.

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
      temperature_pos: t where A > 0.
      temperature_neg: t elsewhere; larger fades faster.

    Returns:
      [..., T], 0 where masked.
    """
    soft = partial(
        surrogates.soft_surrogate,
        temperature_pos=temperature_pos,
        temperature_neg=temperature_neg,
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
        log_probs,
        batch,
        surrogate_fn=surrogates.ratio_surrogate,
        log_ratio_fn=clipped_mean,
    )


# Losses that look at a divergence of the policies where others look at the ratio.


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
    """DPPO-TV: -sg(M min(rho, cap)) A log pi, M shut where a step leads outward and |pi - mu| is
    beyond high (A > 0) or low (A < 0).

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
    fence = _fence(binary_tv, log_probs, batch, low, high)
    return _fenced(log_probs, batch, fence, cap=cap)


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
    fence = _fence(binary_kl, log_probs, batch, low, high)
    return _fenced(log_probs, batch, fence, cap=cap)


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
    samples of pi has the gradient of KL(pi||ref) by token.

    Source: on-policy distillation (Lu et al. 2025, Thinking Machines); the mask and the pull are
    prime-rl's (August 2026).

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      low: largest mu - pi of a token that is taught.
      coef: weight of the pull towards the sampler, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
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

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      share: share of the tokens that are pulled, in [0, 1].
      coef: weight of the pull, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(share=share, coef=coef)
    log_probs, batch = masked_batch(log_probs, batch)
    held = jax.lax.stop_gradient(log_probs)
    off = (batch.advantages, held)
    parts = [jnp.where(batch.mask, x - masked_mean(x, batch.mask, None), 0) for x in off]
    covariance = jnp.where(batch.mask, parts[0] * parts[1], -jnp.inf).ravel()
    rank = jnp.argsort(jnp.argsort(-covariance)).reshape(held.shape).astype(held.dtype)
    most = jnp.maximum(jnp.floor(share * masked_count(batch.mask, held.dtype, None)), 1)
    distance = jnp.abs(log_ratio(log_probs, batch.behavior_log_probs, batch.mask))
    pull = jnp.where(batch.mask & (rank < most), coef * distance, 0)
    return token_loss(log_probs, batch, surrogate_fn=surrogates.ratio_surrogate) + pull


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
    width = jnp.sqrt(_capped_square(jax.lax.stop_gradient(delta), batch.mask, threshold))
    low = jnp.minimum(jnp.exp(-width), 1 - eps_low)
    high = jnp.maximum(jnp.exp(jnp.minimum(width, MAX_LOG_RATIO)), 1 + eps_high)
    clip = partial(surrogates.interval_surrogate, low=low, high=high)
    return token_loss(log_probs, batch, surrogate_fn=clip)


def _capped_square(delta: jax.Array, mask: jax.Array, budget: Scalar) -> jax.Array:
    """The c with mean min(D^2, c) = budget over the tokens; infinite if their mean is below it."""
    squares = jnp.sort(jnp.where(mask, delta**2, jnp.inf).ravel())
    n, before = masked_count(mask, delta.dtype, None), jnp.arange(squares.size, dtype=delta.dtype)
    kept = jnp.where(before < n, squares, 0)
    earlier = jnp.cumsum(kept) - kept
    left = jnp.maximum(n - before, 1)
    reached = (earlier + left * kept >= n * budget) & (before < n)
    first = jnp.argmax(reached)
    cap = (n * budget - earlier[first]) / left[first]
    return jnp.where(jnp.any(reached), cap, jnp.inf)


def _pull(log_probs: jax.Array, batch: TokenBatch, coef: Scalar) -> jax.Array:
    """coef D^2 of each token, 0 where masked."""
    check_nonnegative(coef=coef)
    return coef * log_ratio(log_probs, batch.behavior_log_probs, batch.mask) ** 2


def _fence(
    divergence_fn: KlFn, log_probs: jax.Array, batch: TokenBatch, low: Scalar, high: Scalar
) -> GateFn:
    """The gate that shuts outward steps of tokens whose policies differ too much already."""
    log_probs, batch = masked_batch(log_probs, batch)
    divergence = divergence_fn(log_probs, batch.behavior_log_probs)
    return partial(gates.divergence_gate, divergence=divergence, low=low, high=high)


def _fenced(log_probs: jax.Array, batch: TokenBatch, fence: GateFn, *, cap: Scalar) -> jax.Array:
    weight = partial(gates.clipped_gate, low=0.0, high=cap)
    gate_fn = partial(gates.both_gates, gate_fn=fence, and_gate_fn=weight)
    return scored(log_probs, batch, gate_fn)


# Losses that regress rewards on log-ratios, and their first-order forms.


def opmd_kimi(log_probs: jax.Array, batch: TokenBatch, *, coef: Scalar = 0.1) -> jax.Array:
    """OPMD by token: -A log pi + coef D^2.

    Source: Kimi k1.5 (2025, arXiv:2501.12599), as Yao et al. (2025, arXiv:2509.24203) have it per
    token. Infinite for infinite D.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      coef: weight of D^2, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    imitate = partial(surrogates.score, log_probs=log_probs, gate_fn=gates.open_gate)
    pull = batch._replace(ref_log_probs=batch.behavior_log_probs)
    return token_loss(log_probs, pull, surrogate_fn=imitate, kl_fn=k2, beta=2 * coef)


def opmd_kimi_sequence(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 0.1) -> jax.Array:
    """OPMD by sequence: -A log pi + (tau/2) S^2, S = sum_t D_t, the square spread evenly.

    Source: Kimi k1.5 (2025, arXiv:2501.12599), section 2.3; reduces with `sequence_sum_mean`.
    Infinite for infinite D.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      tau: weight of S^2 / 2, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(tau=tau)
    total = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    count = masked_count(batch.mask, total.dtype)
    return reinforce(log_probs, batch) + tau / 2 * total**2 / jnp.maximum(count, 1)


def oapl(log_probs: jax.Array, batch: TokenBatch, *, slope: Scalar = 1e-3) -> jax.Array:
    """OAPL: (A - slope S)^2 by sequence, S = sum_t D_t, for A = `ogrpo.core.advantages.soft_value`.

    Source: Ritter et al. (2026, arXiv:2602.19362), eq. 3; beta_2 there. The square is spread evenly
    over the tokens: it reduces with `sequence_sum_mean`. The gradient is 2 slope times that of
    `opmd_kimi_sequence` with tau = slope. Infinite for infinite D.

    Each completion is drawn to S = A / slope, hundreds of nats away at the paper's slope of 1e-3:
    within reach the pull is nothing, and the loss REINFORCE with the soft value as baseline. That
    lies above the group's mean, so that a batch is pushed down on the whole, which small steps on
    large models survive and large ones do not. slope = tau asks for a nat or less.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      slope: beta_2 in nats of S for a unit of A, >= 0.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(slope=slope)
    log_probs, batch = masked_batch(log_probs, batch)
    total = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    return evenly((batch.advantages - slope * total) ** 2, batch)


def opmd_min(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 1.0) -> jax.Array:
    """OPMD, minimal: -A log pi / (1 + tau), for A = `centered` or `soft_value` of `advantages`.

    Source: Trinity-RFT (Pan et al. 2025, arXiv:2505.17826); reduces with `token_mean`.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      tau: temperature, >= 0; a scale of the loss.

    Returns:
      [..., T], 0 where masked.
    """
    check_nonnegative(tau=tau)
    return reinforce(log_probs, batch) / (1 + tau)


def opmd_pairwise(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 1.0) -> jax.Array:
    """OPMD, pairwise: (d_i - mean_G d)^2 by sequence, d = A - tau (S - sg(S)), S = sum_t log pi.

    Source: Yao et al. (2025, arXiv:2509.24203), `group_regression` about the current policy; spread
    evenly over the tokens, so it reduces with `sequence_sum`. Its gradient is 2 tau G times the
    group's mean of (A - mean A) grad S, up to sign. Fields are [..., G, T], A constant over a
    completion; one without a token is not in its group.

    Args:
      log_probs: [..., G, T] log pi.
      batch: [..., G, T].
      tau: temperature, >= 0.

    Returns:
      [..., G, T], 0 where masked.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    total = masked_sum(log_probs, batch.mask)[..., 0]
    moved = total - jax.lax.stop_gradient(total)
    present = jnp.any(batch.mask, axis=-1)
    loss = group_regression(per_sequence(batch), moved, tau=tau, present=present)
    return evenly(loss[..., None], batch)


def group_regression(
    rewards: jax.Array, log_ratios: jax.Array, *, tau: Scalar, present: jax.Array | None = None
) -> jax.Array:
    """(d_i - mean d)^2 with d = r - tau l: rewards regressed on sequence log-ratios, pair by pair.

    Source: Yao et al. (2025, arXiv:2509.24203): its mean is K^-2 sum_{i<j} [(r_i - r_j) - tau (l_i
    - l_j)]^2, whose gradient at l = 0 is -2 tau times group-relative REINFORCE, wherever the
    samples came from.

    Args:
      rewards: [..., G].
      log_ratios: [..., G] sum_t log pi/pi_t of each completion.
      tau: temperature, >= 0.
      present: [..., G] bool, the completions that are compared; all if None.

    Returns:
      [..., G], 0 where not present.
    """
    present = jnp.ones_like(rewards, bool) if present is None else present
    check_axes("G", rewards=rewards, log_ratios=log_ratios, present=present)
    check_group(rewards)
    check_nonnegative(tau=tau)
    residual = rewards - tau * log_ratios
    return jnp.where(present, residual - masked_mean(residual, present), 0) ** 2


# Losses of which completion is better, not of how good one is.


def preference_loss(rewards: jax.Array, log_ratios: jax.Array, present: jax.Array) -> jax.Array:
    """-log sigmoid(l_i - l_j), the mean over a group's pairs r_i > r_j, half to each of the two.

    Source: DPO (Rafailov et al. 2023, arXiv:2305.18290), eq. 7, on all pairs of a group. Where
    pi = pi_ref and rewards are 0 and 1 its gradient is half of l's over failures, less that over
    successes, both means.

    Args:
      rewards: [..., G].
      log_ratios: [..., G] l = tau log pi(y)/pi_ref(y) of each completion.
      present: [..., G] bool, True for completions that may be in a pair.

    Returns:
      [..., G], whose sum is the mean over pairs; 0 without a pair.
    """
    check_group(rewards)
    ahead = rewards[..., :, None] - rewards[..., None, :]
    both = present[..., :, None] & present[..., None, :]
    better = jnp.where(both, gate(~(ahead > 0), ahead), 0)  # NaN is seen
    margin = log_ratios[..., :, None] - log_ratios[..., None, :]
    pair = better != 0
    costs = jnp.where(pair, better * jax.nn.softplus(-jnp.where(pair, margin, 0)), 0)
    pairs = jnp.maximum(masked_count(pair, costs.dtype, (-2, -1)), 1)
    mine = jnp.sum(costs, axis=-1, keepdims=True) + jnp.sum(costs, axis=-2)[..., None]
    return (mine / (2 * pairs))[..., 0]


def dpo(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 0.1) -> jax.Array:
    """DPO: -log sigmoid(tau (S_i - S_j)), S = sum_t log pi/pi_ref, over pairs with A_i > A_j.

    Source: Rafailov et al. (2023, arXiv:2305.18290), eq. 7; tau is beta there. Each group counts
    as the mean over its pairs, 0 where it has none, spread evenly over its tokens: it reduces with
    `sequence_sum`. Who drew the completions is not asked. Fields are [..., G, T], A constant over
    a completion.

    Args:
      log_probs: [..., G, T] log pi.
      batch: [..., G, T].
      tau: temperature of the log-ratios, >= 0.

    Returns:
      [..., G, T], 0 where masked.
    """
    check_nonnegative(tau=tau)
    log_probs, batch = masked_batch(log_probs, batch)
    ref = needed(batch.ref_log_probs, "ref_log_probs")
    gains = log_ratio(log_probs, ref, batch.mask)
    distance = masked_sum(gains, batch.mask)[..., 0]
    present = jnp.any(batch.mask, axis=-1)
    shares = preference_loss(per_sequence(batch), tau * distance, present)
    members = masked_count(present, log_probs.dtype)
    return evenly((members * shares)[..., None], batch)


OBJECTIVES: dict[str, Callable[..., jax.Array]] = {
    fn.__name__: fn
    for fn in (
        *(reinforce, cispo, topr, topr_token, vespo, sppo, vtrace),
        *(rec_one_side, rec_one_side_is, rec_two_side, rec_two_side_is, rec_ring, rec_ring_is),
        *(grpo, off_policy_grpo, decoupled, dual_clip, two_sided, gspo, ctpo, sapo, gmpo),
        *(m2po, m2po_released, dppo_tv, dppo_kl, prime_rl, distill, kl_cov),
        *(opmd_kimi, opmd_kimi_sequence, opmd_min, opmd_pairwise, oapl, dpo),
    )
}
"""Name -> `f(log_probs, batch, *, knobs)`: the losses per token."""
