"""Losses of which completion is better, not of how good one is."""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import check_group, check_nonnegative, needed
from ogrpo.core.masked import gate, masked_count, masked_sum
from ogrpo.core.objectives.base import TokenBatch, masked_batch, own_weights, per_sequence
from ogrpo.core.ratios import log_ratio
from ogrpo.core.surrogates import Scalar


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
    """
    check_nonnegative(tau=tau)
    log_probs, batch = masked_batch(log_probs, batch)
    ref = needed(batch.ref_log_probs, "ref_log_probs")
    gains = log_ratio(log_probs, ref, batch.mask)
    distance = masked_sum(gains, batch.mask)[..., 0]
    present = jnp.any(batch.mask, axis=-1)
    shares = preference_loss(per_sequence(batch), tau * distance, present)
    members = masked_count(present, log_probs.dtype)
    count = masked_count(batch.mask, log_probs.dtype)
    spread = (members * shares)[..., None] / jnp.maximum(count, 1)
    return jnp.where(batch.mask, own_weights(batch) * spread, 0)
