"""Reductions of values per token to one number, once and last, as (total, count).

A `Total` adds up exactly over microbatches and devices; divide once, with `mean`. The last axis is
always the tokens of one sequence; every axis before it counts sequences, and for `group_total` the
last axis but one is the group. A sequence or group without a counted token is padding: it adds
nothing to either number.

After tokens were dropped, the denominator is a choice. `mask` says what is summed; `counted` says
what is counted, the same unless given: pass the mask from before to keep the original count.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, as_floats, check_axes, check_mask, check_nonnegative
from ogrpo.core.masked import masked_count, masked_sum


class Total(NamedTuple):
    """A sum and the number of things summed: two scalars that add up over microbatches."""

    total: jax.Array
    count: jax.Array  # pyright: ignore[reportIncompatibleMethodOverride]


def combine(*totals: Total) -> Total:
    """Adds totals field by field (`+` on two tuples would chain them)."""
    return jax.tree.map(lambda *parts: sum(parts[1:], start=parts[0]), *totals)


def mean(total: Total) -> jax.Array:
    """Total over count; 0 when nothing was counted."""
    return total.total / jnp.where(total.count == 0, 1, total.count)


def token_total(values: jax.Array, mask: jax.Array, *, counted: jax.Array | None = None) -> Total:
    """Sum over tokens, number of tokens: long sequences weigh more.

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476).

    Args:
      mask: [..., T] bool, what is summed.
      counted: [..., T] bool, what the count counts; `mask` if None.

    Example:
      >>> mean(token_total(jnp.array([1.0, 3.0, 9.0]), jnp.array([True, True, False])))
      Array(2., dtype=float32)
    """
    values, counted = _checked(values, mask, counted)
    return Total(masked_sum(values, mask, None), masked_count(counted, values.dtype, None))


def sequence_total(
    values: jax.Array, mask: jax.Array, *, counted: jax.Array | None = None
) -> Total:
    """Sum of each sequence's mean over its tokens, number of sequences.

    Source: GRPO (Shao et al. 2024, arXiv:2402.03300), eq. 3. Args and Returns: as `token_total`.
    """
    values, counted = _checked(values, mask, counted)
    lengths = masked_count(counted, values.dtype)
    per_sequence = masked_sum(values, mask) / jnp.maximum(lengths, 1)
    return Total(jnp.sum(per_sequence), masked_count(lengths > 0, lengths.dtype, None))


def sequence_sum_total(
    values: jax.Array, mask: jax.Array, *, counted: jax.Array | None = None
) -> Total:
    """Sum of each sequence's sum over its tokens, number of sequences: the REINFORCE estimator.

    Unbiased for the policy gradient with an unbiased advantage. Args and Returns: as `token_total`.
    """
    values, counted = _checked(values, mask, counted)
    lengths = masked_count(counted, values.dtype)
    return Total(masked_sum(values, mask, None), masked_count(lengths > 0, lengths.dtype, None))


def fixed_length_total(
    values: jax.Array, mask: jax.Array, *, length: Scalar, counted: jax.Array | None = None
) -> Total:
    """Sum over tokens / `length`, number of sequences: `sequence_sum_total` scaled by a constant.

    Source: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), whose constant is the largest length
    allowed.
    Args and Returns: as `token_total`.
    """
    check_nonnegative(length=length)
    summed = sequence_sum_total(values, mask, counted=counted)
    return Total(summed.total / length, summed.count)


def group_total(values: jax.Array, mask: jax.Array, *, counted: jax.Array | None = None) -> Total:
    """Sum of each group's mean over its tokens, number of groups: prompts weigh the same.

    Args:
      mask: [..., G, T] bool, what is summed.
      counted: [..., G, T] bool, what the count counts; `mask` if None.
    """
    check_axes("G, T", values=values, mask=mask)
    flat = (*jnp.shape(values)[:-2], -1)
    counted = None if counted is None else counted.reshape(flat)
    return sequence_total(values.reshape(flat), mask.reshape(flat), counted=counted)


def token_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over all tokens: `mean(token_total(...))`. [..., T] -> scalar."""
    return mean(token_total(values, mask))


def sequence_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over sequences of the mean over tokens. [..., T] -> scalar."""
    return mean(sequence_total(values, mask))


def sequence_sum_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over sequences of the sum over tokens. [..., T] -> scalar."""
    return mean(sequence_sum_total(values, mask))


def fixed_length_mean(values: jax.Array, mask: jax.Array, *, length: Scalar) -> jax.Array:
    """Mean over sequences of the sum over tokens / length. [..., T] -> scalar."""
    return mean(fixed_length_total(values, mask, length=length))


def group_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over groups of the mean over the group's tokens. [..., G, T] -> scalar."""
    return mean(group_total(values, mask))


def _checked(
    values: jax.Array, mask: jax.Array, counted: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    counted = mask if counted is None else counted
    check_axes("T", values=values, mask=mask, counted=counted)
    check_mask(mask)
    check_mask(counted, "counted")
    return as_floats(values=values)[0], counted
