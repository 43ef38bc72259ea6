"""Checks of shapes, dtypes and knobs: a ValueError that names the argument and the remedy.

Shapes and dtypes are known under trace, so these checks work there too. The value of a traced knob
is not: `check_nonnegative` lets it pass. A NaN travels on to the loss. `ogrpo.core` says why these
are ours and not chex's.
"""

import jax
import jax.numpy as jnp
from jax.core import Tracer

Scalar = jax.Array | float
"""A number of a method, which a jitted update may trace."""


def as_floats(**arrays: jax.Array) -> list[jax.Array]:
    """Returns the arrays in order, halves widened to float32; refuses anything but floats."""
    floats = []
    for name, array in ((name, jnp.asarray(array)) for name, array in arrays.items()):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"{name} must be floating point, got {_describe(array)}; cast it first"
            )
        narrow = jnp.finfo(array.dtype).bits < 32
        floats.append(array.astype(jnp.float32) if narrow else array)
    return floats


def check_axes(axes: str, **arrays: jax.Array) -> None:
    """Refuses arrays that differ in shape or lack the trailing `axes`, for example `"G, T"`."""
    shapes = {name: tuple(jnp.shape(array)) for name, array in arrays.items()}
    rank = len(axes.split(","))
    if any(len(shape) < rank for shape in shapes.values()):
        raise ValueError(f"expected arrays [..., {axes}], got {shapes}")
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected one shape [..., {axes}] for all, got {shapes}; broadcast first")
    if any(0 in shape[-rank:] for shape in shapes.values()):
        raise ValueError(f"an axis of [..., {axes}] is empty: {shapes}")


def check_mask(mask: jax.Array, name: str = "mask") -> None:
    """Refuses a mask that is not bool: an integer mask turns `~mask` into nonsense."""
    if jnp.asarray(mask).dtype != jnp.bool_:
        raise ValueError(f"{name} must be bool, got {_describe(mask)}; pass {name} != 0")


def check_masked(axes: str, mask: jax.Array, **arrays: jax.Array) -> None:
    """Refuses arrays that do not share one shape with their mask, or a mask that is not bool."""
    check_axes(axes, **arrays, mask=mask)
    check_mask(mask)


def check_group(rewards: jax.Array, least: int = 2) -> None:
    """Refuses groups of fewer than `least` completions: one alone is its own baseline."""
    if jnp.ndim(rewards) < 1 or jnp.shape(rewards)[-1] < least:
        raise ValueError(f"rewards must be [..., G] with G >= {least}, got {_describe(rewards)}")


def check_nonnegative(**scalars: Scalar) -> None:
    """Refuses negative or NaN scalars; a traced scalar passes, its value being unknown."""
    check_at_least(0, **scalars)


def check_at_least(least: int, **scalars: Scalar) -> None:
    """Refuses smaller or NaN scalars; a traced scalar passes, its value being unknown."""
    for name, value in scalars.items():
        if isinstance(value, Tracer):
            continue
        with jax.ensure_compile_time_eval():  # a Python float is known inside a jit, too
            if not jnp.all(jnp.asarray(value) >= least):
                raise ValueError(f"{name} must be >= {least}, got {value}")


def check_open(top: float, **scalars: Scalar) -> None:
    """Refuses scalars that do not lie strictly between 0 and `top`; a traced scalar passes."""
    for name, value in scalars.items():
        if not isinstance(value, Tracer) and not 0 < float(value) < top:
            raise ValueError(f"{name} must lie strictly between 0 and {top}, got {value}")


def is_zero(weight: jax.Array | float) -> bool:
    """Returns whether a term's weight is the number 0, so that the term need not be computed.

    The weight of an array or of a tracer is not looked at: its term is computed, whatever it is.
    """
    return not isinstance(weight, jax.Array) and weight == 0


def needed(array: jax.Array | None, name: str) -> jax.Array:
    """Returns an array that a loss reads, or raises a ValueError that says which is missing."""
    if array is None:
        raise ValueError(
            f"the loss reads {name}, and the batch has none: give TokenBatch({name}=...), and name"
            " the policy in `reads` of an Algorithm of your own"
        )
    return array


def _describe(array: jax.Array) -> str:
    return f"{jnp.asarray(array).dtype}{list(jnp.shape(array))}"
