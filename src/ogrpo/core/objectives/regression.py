"""Losses that regress rewards on log-ratios, their first-order forms, and one of preferences."""

from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import gates, surrogates
from ogrpo.core.checks import Scalar, check_axes, check_group, check_nonnegative, needed
from ogrpo.core.divergences import k2
from ogrpo.core.masked import gate, masked_count, masked_mean, masked_sum
from ogrpo.core.objectives.base import TokenBatch, evenly, masked_batch, per_sequence, token_loss
from ogrpo.core.objectives.score import reinforce
from ogrpo.core.ratios import log_ratio, sequence_log_ratio

__all__ = [  # noqa: RUF022
    "opmd_kimi",
    "opmd_kimi_sequence",
    "opmd_min",
    "opmd_pairwise",
    "oapl",
    "dpo",
]


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
    check_nonnegative(coef=coef)
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


def dpo(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 0.1) -> jax.Array:
    """DPO: -log sigmoid(tau (S_i - S_j)), S = sum_t log pi/pi_ref, over pairs with A_i > A_j.

    Source: Rafailov et al. (2023, arXiv:2305.18290), eq. 7; tau is beta there. Each group counts
    as the mean over its pairs, 0 where it has none, spread evenly over its tokens: it reduces with
    `sequence_sum`. Where pi = pi_ref and rewards are 0 and 1 the gradient is tau/2 times S's mean
    gradient over failures, less that over successes. It does not matter who drew the completions.
    Fields are [..., G, T], A constant over a completion.

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
    credit, scaled = per_sequence(batch), tau * distance
    check_group(credit)
    ahead = credit[..., :, None] - credit[..., None, :]
    both = present[..., :, None] & present[..., None, :]
    better = jnp.where(both, gate(~(ahead > 0), ahead), 0)  # NaN is seen
    margin = scaled[..., :, None] - scaled[..., None, :]
    pair = better != 0
    costs = jnp.where(pair, better * jax.nn.softplus(-jnp.where(pair, margin, 0)), 0)
    pairs = jnp.maximum(masked_count(pair, costs.dtype, (-2, -1)), 1)
    mine = jnp.sum(costs, axis=-1, keepdims=True) + jnp.sum(costs, axis=-2)[..., None]
    members = masked_count(present, log_probs.dtype)
    return evenly((members * (mine / (2 * pairs))[..., 0])[..., None], batch)
