"""Sums and means over the entries a bool mask keeps; an empty one is 0, with zero gradient.

The mask goes in with `where`, never as a factor: `0 * inf` would survive it.
"""

import jax
import jax.numpy as jnp


def masked_sum(values: jax.Array, mask: jax.Array, axis: int | None = -1) -> jax.Array:
    """Sum of `values` where `mask` is True. [..., T] -> [..., 1], or a scalar for axis None."""
    return jnp.sum(jnp.where(mask, values, 0), axis=axis, keepdims=axis is not None)


def masked_count(
    mask: jax.Array, dtype: jax.typing.DTypeLike, axis: int | tuple[int, ...] | None = -1
) -> jax.Array:
    """Number of True entries, as a float. [..., T] -> [..., 1], or a scalar for axis None."""
    return jnp.sum(mask, axis=axis, keepdims=axis is not None).astype(dtype)


def masked_mean(values: jax.Array, mask: jax.Array, axis: int | None = -1) -> jax.Array:
    """Mean of `values` where `mask` is True. [..., T] -> [..., 1], or a scalar for axis None."""
    count = masked_count(mask, values.dtype, axis)
    return masked_sum(values, mask, axis) / jnp.maximum(count, 1)


def gate(closed: jax.Array, witness: jax.Array) -> jax.Array:
    """1 where open, 0 where `closed`, NaN where `witness` is: a comparison would swallow it."""
    ones = jnp.ones_like(witness)
    return jnp.where(jnp.isnan(witness), witness, jnp.where(closed, 0, ones))
