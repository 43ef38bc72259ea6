"""Advantages that read more than rewards: steps and values ([..., G, T]), or lengths ([..., G])."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.advantages import group_standardized, judged, raw
from ogrpo.core.checks import (
    Scalar,
    as_floats,
    check_axes,
    check_mask,
    check_masked,
    check_nonnegative,
)
from ogrpo.core.masked import masked_count, masked_mean
from ogrpo.core.traces import generalized_advantages


class Trajectory(NamedTuple):
    """Rewards of steps and values of states along completions, [..., G, T]; None where not read."""

    mask: jax.Array
    """Bool, True on tokens that carry loss."""
    step_rewards: jax.Array | None = None
    """The reward of a step at its last token; what lies elsewhere does not matter."""
    step_ends: jax.Array | None = None
    """Bool, True at the last token of a step."""
    values: jax.Array | None = None
    """V of the state before each token."""


def step_returns(
    rewards: jax.Array, trajectory: Trajectory, *, step_weight: Scalar = 1.0
) -> jax.Array:
    """Reward to come beyond that of the others from the same step on.

    A_{i,t} = R_i + w sum_{u >= t} s_{i,u} - mean_{j != i} (R_j + w sum of j's steps from k on), k
    the steps that i ended before t, s_u the reward of a step at its last token.

    Source: reward to go (Sutton et al. 1999), the baseline of Kool et al. (2019) by step. Unbiased
    for E[R + w sum_u s_u] under `sequence_sum`: the baseline depends on the other completions and
    on the tokens before t alone.

    Args:
      rewards: [..., G] R, G >= 2.
      trajectory: with `step_rewards` and `step_ends`.
      step_weight: w, >= 0.

    Returns:
      [..., G, T].
    """
    check_nonnegative(step_weight=step_weight)
    (outcome, present), (earned, ends) = judged(rewards, 2), _steps(trajectory)
    before = jnp.cumsum(ends, axis=-1) - ends.astype(int)
    earns = outcome[..., None] + step_weight * _to_come(earned)
    table = outcome[..., None] + step_weight * _to_come(_by_step(earned, before))
    table = jnp.where(present[..., None], table, 0)
    others = jnp.sum(table, axis=-2, keepdims=True) - table
    siblings = jnp.maximum(masked_count(present, outcome.dtype) - 1, 1)[..., None]
    baseline = jnp.take_along_axis(others / siblings, before, axis=-1)
    return jnp.where(present[..., None], earns - baseline, 0)


def process_standardized(
    rewards: jax.Array, trajectory: Trajectory, *, eps_inside: Scalar = 0.0
) -> jax.Array:
    """Standardised rewards of the steps to come: A_{i,t} = sum_{u >= t} (s_{i,u} - mean s) / std s.

    Source: GRPO with process supervision (Shao et al. 2024, arXiv:2402.03300), section 4.1.3; mean
    and standard deviation are over all steps of the group. The rewards of completions are not read.
    Bias: that of `ogrpo.core.advantages.group_standardized`, and more steps count for more.

    Args:
      rewards: [..., G], for their shape, and whether a completion was judged.
      trajectory: with `step_rewards` and `step_ends`.
      eps_inside: added to the variance.

    Returns:
      [..., G, T]; 0 where all steps of a group earned the same.
    """
    check_nonnegative(eps_inside=eps_inside)
    earned, ends = _steps(trajectory)
    ends = ends & judged(rewards, 2).present[..., None]
    earned = jnp.where(ends, earned, 0)
    flat = (*earned.shape[:-2], -1)
    values, there = earned.reshape(flat), ends.reshape(flat)
    deviation = jnp.where(there, values - masked_mean(values, there), 0)
    variance = masked_mean(deviation**2, there)
    low = jnp.min(jnp.where(there, values, jnp.inf), axis=-1, keepdims=True)
    high = jnp.max(jnp.where(there, values, -jnp.inf), axis=-1, keepdims=True)
    varied = ~(high <= low) & (masked_count(there, values.dtype) > 0)
    scaled = deviation / jnp.sqrt(jnp.where(varied, variance, 1) + eps_inside)
    return _to_come(jnp.where(varied, scaled, 0).reshape(earned.shape))


def gae(
    rewards: jax.Array, trajectory: Trajectory, *, discount: Scalar, decay: Scalar
) -> jax.Array:
    """Generalised advantage estimation with the reward of a completion at its last token.

    Source: Schulman et al. (2016, arXiv:1506.02438), eq. 16; see
    `ogrpo.core.traces.generalized_advantages`.

    Args:
      rewards: [..., G], G >= 1.
      trajectory: with `values`.
      discount: gamma in [0, 1].
      decay: lambda in [0, 1].

    Returns:
      [..., G, T], 0 where masked.
    """
    if trajectory.values is None:
        raise ValueError(
            "generalised advantages need the values of the states: give trajectory.values"
        )
    (values,) = as_floats(values=trajectory.values)
    outcome = judged(rewards).values
    remaining = jnp.cumsum(trajectory.mask[..., ::-1], axis=-1)[..., ::-1]
    earned = jnp.where(trajectory.mask & (remaining == 1), outcome[..., None], 0)
    of = partial(generalized_advantages, discount=discount, decay=decay)
    return of(earned, values, trajectory.mask)


def squared_error(
    values: jax.Array, returns: jax.Array, mask: jax.Array, *, value_coef: Scalar = 1.0
) -> jax.Array:
    """c (V_t - R_t)^2, R_t = A_t + V_t the lambda-return of the values before the update, constant.

    Source: PPO (Schulman et al. 2017, arXiv:1707.06347), eq. 9. [..., T] each -> [..., T].
    """
    check_masked("T", mask, values=values, returns=returns)
    check_nonnegative(value_coef=value_coef)
    error = jnp.where(mask, values, 0) - jnp.where(mask, jax.lax.stop_gradient(returns), 0)
    return jnp.where(mask, value_coef * error**2, 0)


def length_weighted(rewards: jax.Array, trajectory: Trajectory) -> jax.Array:
    """OPO: A_i = r_i - sum_j L_j r_j / sum_j L_j, L the tokens of a completion. [..., G] -> same.

    Source: OPO (Hao et al. 2025, arXiv:2505.23585): the baseline of least variance where the
    squared norm of a completion's score grows as its length. Bias: it contains the sample.

    Args:
      rewards: [..., G], G >= 2.
      trajectory: with the mask.
    """
    values, present = judged(rewards, 2)
    lengths = jnp.where(present, masked_count(trajectory.mask, values.dtype)[..., 0], 0)
    total = jnp.maximum(jnp.sum(lengths, axis=-1, keepdims=True), 1)
    baseline = jnp.sum(lengths * values, axis=-1, keepdims=True) / total
    return jnp.where(present, values - baseline, 0)


def overlong_penalty(lengths: jax.Array, *, length: Scalar, overlong: Scalar) -> jax.Array:
    """DAPO's soft penalty: 0 up to (1 - c) L tokens, then linear, -1 from L on; c = overlong.

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476), eq. 13, whose cache is c L.

    Args:
      lengths: tokens of completions, any shape.
      length: L, the longest completion allowed, > 0.
      overlong: c in (0, 1], the share of L in which the penalty grows; with 0 it is 0 up to L, and
        -1 beyond.

    Returns:
      In [-1, 0], of the same shape.
    """
    check_nonnegative(length=length, overlong=overlong)
    beyond = jnp.asarray(lengths, float) - (1 - overlong) * length
    cache = jnp.maximum(overlong * length, 1e-6)
    return -jnp.clip(beyond / cache, 0, 1)


def overlong_standardized(
    rewards: jax.Array,
    trajectory: Trajectory,
    *,
    length: Scalar,
    overlong: Scalar = 0.2,
    eps_inside: Scalar = 1e-6,
) -> jax.Array:
    """The standardised rewards of completions after `overlong_penalty`: DAPO's fourth part.

    Args:
      rewards: [..., G], G >= 2.
      trajectory: with the mask, whose tokens are a completion's length.
      length: as in `overlong_penalty`.
      overlong: as there.
      eps_inside: added to the variance.

    Returns:
      [..., G].
    """
    (values,) = as_floats(rewards=rewards)
    lengths = masked_count(trajectory.mask, values.dtype)[..., 0]
    shaped = values + overlong_penalty(lengths, length=length, overlong=overlong)
    return group_standardized(shaped, eps_inside=eps_inside)


def whitened(
    rewards: jax.Array,
    trajectory: Trajectory,
    *,
    advantage_fn: Callable[[jax.Array], jax.Array] = raw,
    eps_inside: Scalar = 1e-8,
) -> jax.Array:
    """A = (a - mean) / sqrt(var + eps), mean and variance (Bessel's) over all tokens of the batch.

    Source: REINFORCE++ (Hu et al. 2025, arXiv:2501.03262) with a = r, and with the group's mean as
    baseline for a = `centered`. Depends on the batch: compute it before cutting microbatches.

    Args:
      rewards: [..., G].
      trajectory: with the mask: a completion counts as often as it has tokens.
      advantage_fn: `(rewards) -> [..., G]`, what is whitened.
      eps_inside: added to the variance.

    Returns:
      [..., G]; 0 where a is the same at all tokens.
    """
    present = judged(rewards).present
    mask = trajectory.mask & present[..., None]
    return whiten(advantage_fn(rewards), mask, eps_inside=eps_inside)


def whiten(advantages: jax.Array, mask: jax.Array, *, eps_inside: Scalar = 1e-8) -> jax.Array:
    """(a - mean) / sqrt(var + eps), mean and variance (Bessel's) over all tokens of the batch.

    Source: token whitening, as verl 0.9 and Trinity-RFT 0.6 do with generalised advantages
    (`masked_whiten`). Depends on the batch: compute it before cutting microbatches.

    Args:
      advantages: [..., G], each counted as often as it has tokens, or [..., G, T].
      mask: [..., G, T] bool.
      eps_inside: added to the variance.

    Returns:
      As the advantages; 0 where masked, or where they are the same at all tokens.
    """
    check_mask(mask)
    (values,) = as_floats(advantages=advantages)
    by_token = values.ndim == mask.ndim
    lengths = masked_count(mask, values.dtype)[..., 0]
    counts = mask.astype(values.dtype) if by_token else lengths
    total, counted = jnp.maximum(jnp.sum(counts), 1), counts > 0
    off = jnp.where(counted, values - jnp.sum(jnp.where(counted, counts * values, 0)) / total, 0)
    variance = jnp.sum(counts * off**2) / jnp.maximum(total - 1, 1)
    low = jnp.min(jnp.where(counted, values, jnp.inf))
    varied = jnp.max(jnp.where(counted, values, -jnp.inf)) > low
    return jnp.where(varied, off / jnp.sqrt(jnp.where(varied, variance, 1) + eps_inside), 0)


def _steps(trajectory: Trajectory) -> tuple[jax.Array, jax.Array]:
    """The rewards of steps, 0 where none ends, and the ends."""
    if trajectory.step_rewards is None or trajectory.step_ends is None:
        raise ValueError(
            "rewards of steps are read: give trajectory.step_rewards and trajectory.step_ends"
        )
    check_axes("G, T", step_rewards=trajectory.step_rewards, step_ends=trajectory.step_ends)
    check_mask(trajectory.step_ends, "step_ends")
    (earned,) = as_floats(step_rewards=trajectory.step_rewards)
    return jnp.where(trajectory.step_ends, earned, 0), trajectory.step_ends


def _to_come(values: jax.Array) -> jax.Array:
    """sum_{u >= t} of [..., T]."""
    return jnp.cumsum(values[..., ::-1], axis=-1)[..., ::-1]


@partial(jnp.vectorize, signature="(t),(t)->(t)")
def _by_step(values: jax.Array, steps: jax.Array) -> jax.Array:
    """The sum of the values of each step, by its number."""
    return jnp.zeros_like(values).at[steps].add(values)
