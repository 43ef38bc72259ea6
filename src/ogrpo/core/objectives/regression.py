"""Losses that regress rewards on log-ratios, and their first-order forms."""

import jax
import jax.numpy as jnp

from ogrpo.core import gates
from ogrpo.core.checks import check_axes, check_group, check_nonnegative
from ogrpo.core.divergences import k2
from ogrpo.core.masked import masked_count, masked_mean, masked_sum
from ogrpo.core.objectives.base import (
    TokenBatch,
    masked_batch,
    own_weights,
    per_sequence,
    scored,
)
from ogrpo.core.objectives.score import reinforce
from ogrpo.core.ratios import sequence_log_ratio
from ogrpo.core.surrogates import Scalar


def opmd_kimi(log_probs: jax.Array, batch: TokenBatch, *, coef: Scalar = 0.1) -> jax.Array:
    """OPMD by token: -A log pi + coef D^2.

    Source: Kimi k1.5 (2025), as Yao et al. (2025) have it per token. Infinite for infinite D.
    """
    pull = batch._replace(ref_log_probs=batch.behavior_log_probs)
    return scored(log_probs, pull, gates.open_gate, kl_fn=k2, beta=2 * coef)


def opmd_kimi_sequence(log_probs: jax.Array, batch: TokenBatch, *, tau: Scalar = 0.1) -> jax.Array:
    """OPMD by sequence: -A log pi + (tau/2) S^2, S = sum_t D_t, the square spread evenly.

    Source: Kimi k1.5 (2025, arXiv:2501.12599), section 2.3; reduces with `sequence_sum_mean`.
    Infinite for infinite D.
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
    """
    check_nonnegative(slope=slope)
    log_probs, batch = masked_batch(log_probs, batch)
    total = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    count = masked_count(batch.mask, log_probs.dtype)
    square = (batch.advantages - slope * total) ** 2 / jnp.maximum(count, 1)
    return jnp.where(batch.mask, own_weights(batch) * square, 0)


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
    (A - mean A) grad S, up to sign. Fields are [..., G, T], A constant over a completion; one
    without a token is not in its group.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    total = masked_sum(log_probs, batch.mask)[..., 0]
    moved = total - jax.lax.stop_gradient(total)
    present = jnp.any(batch.mask, axis=-1)
    loss = group_regression(per_sequence(batch), moved, tau=tau, present=present)
    count = masked_count(batch.mask, log_probs.dtype)
    spread = loss[..., None] / jnp.maximum(count, 1)
    return jnp.where(batch.mask, own_weights(batch) * spread, 0)


def group_regression(
    rewards: jax.Array,
    log_ratios: jax.Array,
    *,
    tau: Scalar,
    present: jax.Array | None = None,
) -> jax.Array:
    """(d_i - mean d)^2 with d = r - tau l: rewards regressed on sequence log-ratios, pair by pair.

    Source: Yao et al. (2025): its mean is K^-2 sum_{i<j} [(r_i - r_j) - tau (l_i - l_j)]^2, whose
    gradient at l = 0 is -2 tau times group-relative REINFORCE, wherever the samples came from.

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
