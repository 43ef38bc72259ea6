"""The generic loss and its named presets: `f(log_probs, batch, *, knobs) -> loss per token`.

    ratio -> surrogate -> weight -> + beta * KL

Presets bind the functions and carry the literature's defaults; `OBJECTIVES` names them for the
command line. Nothing is reduced here: see `ogrpo.core.aggregate`; a preset names the reduction of
its paper. A loss of whole sequences is spread over their tokens so that that reduction restores it.

Every ratio is over `behavior_log_probs`. For the trainer's own start of the update instead, use
`decoupled` or `batch._replace(behavior_log_probs=batch.proximal_log_probs)`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core import gates, surrogates
from ogrpo.core.advantages import red_drop as drop_negatives
from ogrpo.core.advantages import red_weight as weigh_positives
from ogrpo.core.checks import as_floats, check_axes, check_group, check_mask, check_nonnegative
from ogrpo.core.divergences import KlFn, binary_kl, binary_tv, k2, k3
from ogrpo.core.masked import masked_count, masked_mean, masked_sum
from ogrpo.core.ratios import exp_ratio, log_ratio, mean_log_ratio, sequence_log_ratio
from ogrpo.core.surrogates import GateFn, Scalar, SurrogateFn
from ogrpo.core.weights import truncated_weight, unit_weight

LogRatioFn = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
WeightFn = Callable[[jax.Array, jax.Array], jax.Array]


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
    w = weight_fn(log pi_k - log mu, mask) does not, and leaves the KL term alone.

    Args:
      log_probs: [..., T] log pi_theta, the only differentiated argument.
      batch: the rest, [..., T].
      surrogate_fn: `(ratio, advantages) -> [..., T]`, to be maximised.
      log_ratio_fn: `(log_probs, behavior_log_probs, mask) -> [..., T]`.
      weight_fn: `(log_ratio, mask) -> [..., T]`, with rho relative to the proximal policy only.
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


def reinforce(log_probs: jax.Array, batch: TokenBatch, *, beta: Scalar = 0.0) -> jax.Array:
    """REINFORCE: -A log pi + beta k3.

    Source: Williams (1992). Unbiased for the policy gradient on samples of pi under
    `sequence_sum_mean`; on others' samples it climbs E_mu[A log pi] instead.
    """
    return _scored(log_probs, batch, gates.open_gate, beta=beta)


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


def from_proximal(batch: TokenBatch, log_ratio_fn: LogRatioFn = log_ratio) -> LogRatioFn:
    """A `log_ratio_fn` whose denominator is pi_k, whatever the batch's behaviour policy was."""
    return lambda new, _, mask: log_ratio_fn(new, batch.proximal_log_probs, mask)


def dapo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.28,
) -> jax.Array:
    """DAPO: `grpo` with the clip higher above, and no KL.

    Source: Yu et al. (2025), which reduces with `token_mean` and resamples zero-variance groups.
    """
    return grpo(log_probs, batch, eps_low=eps_low, eps_high=eps_high)


def dr_grpo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    beta: Scalar = 0.0,
) -> jax.Array:
    """Dr. GRPO: `grpo` for `centered` advantages and `fixed_length_mean`.

    Source: Liu et al. (2025): without the two normalisations the gradient is unbiased up to scale.
    """
    return grpo(log_probs, batch, eps_low=eps_low, eps_high=eps_high, beta=beta)


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


def cispo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.0,
    high: Scalar = 5.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """CISPO: -sg(clip(rho, low, high)) A log pi, bounds absolute.

    Source: MiniMax-M1 (2025); high = 5 from ScaleRL (Khatri et al. 2025).
    Reduces with `token_mean`.
    """
    return _scored(log_probs, batch, partial(gates.clipped_gate, low=low, high=high), beta=beta)


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


def topr(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """TOPR: -sg(a) A log pi, a = min(rho, 1) for A <= 0, else 1, rho by trajectory.

    Source: Le Roux et al. (2025); reduces with `sequence_sum_mean`.
    """
    return _scored(log_probs, batch, gates.tapered_gate, log_ratio_fn=sequence_log_ratio)


def topr_token(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """TOPR as its public code has it: `topr` with rho by token."""
    return _scored(log_probs, batch, gates.tapered_gate)


def sppo(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 1 / 1.3,
    high: Scalar = 1.3,
) -> jax.Array:
    """sPPO: -A D 1[low <= rho <= high], D = log rho.

    Source: Vaswani et al. (2022), the softmax surrogate with a clip.
    """
    band = partial(gates.band_gate, low=low, high=high)
    distance = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    return token_loss(log_probs, batch, surrogate_fn=_score_of(distance, band))


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


def m2po(
    log_probs: jax.Array, batch: TokenBatch, *, threshold: Scalar = 0.04, beta: Scalar = 0.0
) -> jax.Array:
    """M2PO: -rho A, without the tokens of largest D^2 until the rest's mean is below the threshold.

    Source: Zheng et al. (2025), "Prosperity before Collapse"; reduces with `token_mean`. Looks at
    the whole array: microbatches do not add up to the batch.
    """
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    kept = gates.second_moment_gate(delta, batch.mask, threshold=threshold)
    return _gated(log_probs, batch, lambda *_: kept, beta=beta)


def dppo_tv(
    log_probs: jax.Array, batch: TokenBatch, *, delta: Scalar = 0.15, beta: Scalar = 0.0
) -> jax.Array:
    """DPPO-TV: -M rho A, M shut where a step leads outward and |pi - mu| > delta.

    Source: Qi et al. (2026), binary TV.
    """
    divergence = _between(binary_tv, log_probs, batch)
    fence = partial(gates.divergence_gate, divergence=divergence, delta=delta)
    return _gated(log_probs, batch, fence, beta=beta)


def dppo_kl(
    log_probs: jax.Array, batch: TokenBatch, *, delta: Scalar = 0.05, beta: Scalar = 0.0
) -> jax.Array:
    """DPPO-KL: as `dppo_tv`, with KL(mu||pi) of "this token or another" > delta.

    Source: Qi et al. (2026), binary KL.
    """
    divergence = _between(binary_kl, log_probs, batch)
    fence = partial(gates.divergence_gate, divergence=divergence, delta=delta)
    return _gated(log_probs, batch, fence, beta=beta)


def rec_one_side(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-OneSide-NoIS: -A M log pi, M = `one_side_gate`.

    Source: Yao et al. (2025). Wide: eps_low = 0.6, eps_high = 2.
    """
    gate = partial(gates.one_side_gate, eps_low=eps_low, eps_high=eps_high)
    return _scored(log_probs, batch, gate)


def rec_one_side_is(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-OneSide-IS: -A sg(rho) M log pi; the gradient is that of `grpo` away from the kinks.

    Source: Yao et al. (2025).
    """
    gate = partial(gates.one_side_gate, eps_low=eps_low, eps_high=eps_high)
    return _scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def rec_two_side(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-TwoSide-NoIS: -A M log pi, M = `two_side_gate`. Source: Yao et al. (2025)."""
    gate = partial(gates.two_side_gate, eps_low=eps_low, eps_high=eps_high)
    return _scored(log_probs, batch, gate)


def rec_two_side_is(
    log_probs: jax.Array, batch: TokenBatch, *, eps_low: Scalar = 0.2, eps_high: Scalar = 0.2
) -> jax.Array:
    """REC-TwoSide-IS: -A sg(rho) M log pi, M = `two_side_gate`. Source: Yao et al. (2025)."""
    gate = partial(gates.two_side_gate, eps_low=eps_low, eps_high=eps_high)
    return _scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def rec_ring(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    outer_low: Scalar = 0.6,
    outer_high: Scalar = 2.0,
) -> jax.Array:
    """REC-Ring-NoIS: -A M log pi, M = `ring_gate`. Source: Yao et al. (2025)."""
    inner = partial(gates.ring_gate, eps_low=eps_low, eps_high=eps_high)
    gate = partial(inner, outer_low=outer_low, outer_high=outer_high)
    return _scored(log_probs, batch, gate)


def rec_ring_is(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    eps_low: Scalar = 0.2,
    eps_high: Scalar = 0.2,
    outer_low: Scalar = 0.6,
    outer_high: Scalar = 2.0,
) -> jax.Array:
    """REC-Ring-IS: -A sg(rho) M log pi, M = `ring_gate`. Source: Yao et al. (2025)."""
    inner = partial(gates.ring_gate, eps_low=eps_low, eps_high=eps_high)
    gate = partial(inner, outer_low=outer_low, outer_high=outer_high)
    return _scored(log_probs, batch, partial(gates.ratio_gate, gate_fn=gate))


def red_drop(log_probs: jax.Array, batch: TokenBatch, *, key: jax.Array) -> jax.Array:
    """RED-Drop: REINFORCE on `ogrpo.core.advantages.red_drop` of the batch's advantages.

    Source: Yao et al. (2025). Fields are [..., G, T]; an advantage is constant over its completion,
    and not standardised. Dropped tokens cost 0 and stay in the denominator; to take them out, drop
    first, and put `kept` into the mask.

    Args:
      log_probs: [..., G, T].
      batch: [..., G, T].
      key: a PRNG key, consumed.

    Returns:
      [..., G, T].
    """
    dropped = drop_negatives(_per_sequence(batch), key).advantages
    spread = jnp.where(batch.mask, dropped[..., None], 0)
    return reinforce(log_probs, batch._replace(advantages=spread))


def red_weight(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 1.0) -> jax.Array:
    """RED-Weight: -exp(A / tau) A log pi. Source: Yao et al. (2025)."""
    weighed = weigh_positives(as_floats(advantages=batch.advantages)[0], tau=tau)
    return reinforce(log_probs, batch._replace(advantages=weighed))


def opmd_kimi(log_probs: jax.Array, batch: TokenBatch, *, coef: Scalar = 0.1) -> jax.Array:
    """OPMD by token: -A log pi + coef D^2.

    Source: Kimi k1.5 (2025), as Yao et al. (2025) have it per token. Infinite for infinite D.
    """
    pull = batch._replace(ref_log_probs=batch.behavior_log_probs)
    return _scored(log_probs, pull, gates.open_gate, kl_fn=k2, beta=2 * coef)


def opmd_kimi_sequence(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 0.1) -> jax.Array:
    """OPMD by sequence: -A log pi + (tau/2) (sum_t D_t)^2, the square spread as S D_t.

    Source: Kimi k1.5 (2025), section 2.3; reduces with `sequence_sum_mean`. Infinite for
    infinite D.
    """
    total = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    check_nonnegative(tau=tau)
    return reinforce(log_probs, batch) + tau / 2 * total * delta


def opmd_min(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 1.0) -> jax.Array:
    """OPMD, minimal: -A log pi / (1 + tau), for A = `centered` or `ogrpo.core.advantages.opmd`.

    Source: Trinity-RFT (Pan et al. 2025); reduces with `token_mean`.
    """
    check_nonnegative(tau=tau)
    return reinforce(log_probs, batch) / (1 + tau)


def opmd_pairwise(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 1.0) -> jax.Array:
    """OPMD, pairwise: (d_i - mean_G d)^2 by sequence, d = A - tau (S - sg(S)), S = sum_t log pi.

    Source: Yao et al. (2025), `group_regression` about the current policy; spread evenly over the
    tokens, so it reduces with `sequence_sum`. Its gradient is 2 tau G times the group's mean of
    (A - mean A) grad S, up to sign. Fields are [..., G, T], A constant over a completion.
    """
    log_probs, batch = _masked(log_probs, batch)
    total = masked_sum(log_probs, batch.mask)[..., 0]
    moved = total - jax.lax.stop_gradient(total)
    loss = group_regression(_per_sequence(batch), moved, tau=tau)
    count = masked_count(batch.mask, log_probs.dtype)
    return jnp.where(batch.mask, loss[..., None] / jnp.maximum(count, 1), 0)


def group_regression(rewards: jax.Array, log_ratios: jax.Array, *, tau: Scalar) -> jax.Array:
    """(d_i - mean d)^2 with d = r - tau l: rewards regressed on sequence log-ratios, pair by pair.

    Source: Yao et al. (2025): its mean is K^-2 sum_{i<j} [(r_i - r_j) - tau (l_i - l_j)]^2, whose
    gradient at l = 0 is -2 tau times group-relative REINFORCE, wherever the samples came from.

    Args:
      rewards: [..., G].
      log_ratios: [..., G] sum_t log pi/pi_t of each completion.
      tau: temperature, >= 0.

    Returns:
      [..., G].
    """
    check_axes("G", rewards=rewards, log_ratios=log_ratios)
    check_group(rewards)
    check_nonnegative(tau=tau)
    residual = rewards - tau * log_ratios
    return (residual - jnp.mean(residual, axis=-1, keepdims=True)) ** 2


def asymre(log_probs: jax.Array, batch: TokenBatch, *, shift: Scalar = 0.1) -> jax.Array:
    """AsymRE: -(A + shift) log pi: the baseline lowered by `shift`.

    Source: Arnal et al. (2025).
    """
    advantages = as_floats(advantages=batch.advantages)[0] + shift
    return reinforce(log_probs, batch._replace(advantages=advantages))


OBJECTIVES: dict[str, Callable[..., jax.Array]] = {
    fn.__name__: fn
    for fn in (
        reinforce,
        grpo,
        off_policy_grpo,
        decoupled,
        dapo,
        dr_grpo,
        gspo,
        cispo,
        sapo,
        topr,
        topr_token,
        sppo,
        gmpo,
        m2po,
        dppo_tv,
        dppo_kl,
        rec_one_side,
        rec_one_side_is,
        rec_two_side,
        rec_two_side_is,
        rec_ring,
        rec_ring_is,
        red_drop,
        red_weight,
        opmd_kimi,
        opmd_kimi_sequence,
        opmd_min,
        opmd_pairwise,
        asymre,
    )
}
"""Name -> `f(log_probs, batch, *, knobs)`, for a command line to choose from."""


def _score_of(log_probs: jax.Array, gate_fn: GateFn) -> SurrogateFn:
    return partial(surrogates.score, log_probs=log_probs, gate_fn=gate_fn)


def _scored(
    log_probs: jax.Array,
    batch: TokenBatch,
    gate_fn: GateFn,
    *,
    log_ratio_fn: LogRatioFn = log_ratio,
    kl_fn: KlFn = k3,
    beta: Scalar = 0.0,
) -> jax.Array:
    log_probs, batch = _masked(log_probs, batch)
    surrogate = _score_of(log_probs, gate_fn)
    return token_loss(
        log_probs,
        batch,
        surrogate_fn=surrogate,
        log_ratio_fn=log_ratio_fn,
        kl_fn=kl_fn,
        beta=beta,
    )


def _gated(log_probs: jax.Array, batch: TokenBatch, gate_fn: GateFn, *, beta: Scalar) -> jax.Array:
    inside = partial(surrogates.gated, surrogate_fn=surrogates.ratio_surrogate, gate_fn=gate_fn)
    return token_loss(log_probs, batch, surrogate_fn=inside, beta=beta)


def _between(divergence_fn: KlFn, log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    log_probs, batch = _masked(log_probs, batch)
    return divergence_fn(log_probs, batch.behavior_log_probs)


def _per_sequence(batch: TokenBatch) -> jax.Array:
    check_axes("G, T", advantages=batch.advantages, mask=batch.mask)
    return masked_mean(as_floats(advantages=batch.advantages)[0], batch.mask)[..., 0]


def _masked(log_probs: jax.Array, batch: TokenBatch) -> tuple[jax.Array, TokenBatch]:
    check_axes("T", log_probs=log_probs, **batch._asdict())
    check_mask(batch.mask)
    numbers = {**batch._asdict(), "log_probs": log_probs}
    mask = numbers.pop("mask")
    kept = [jnp.where(mask, array, 0) for array in as_floats(**numbers)]
    fields = dict(zip(numbers, kept, strict=True))
    return fields.pop("log_probs"), TokenBatch(mask=mask, **fields)
