"""What every function of the core refuses, and in which words.

Shapes and dtypes are known under trace, so these checks work there too. Values are only known in
host code: `check_nonnegative` judges a traced scalar to be the caller's business, and
`check_values` belongs in front of the jitted update. Inside it a NaN travels on to the loss.
"""

import jax
import jax.numpy as jnp
from jax.core import Tracer


def as_floats(**arrays: jax.Array) -> list[jax.Array]:
    """Return the arrays in order, halves widened to float32; anything but floats is refused."""
    return [_widen(name, jnp.asarray(array)) for name, array in arrays.items()]


def _widen(name: str, array: jax.Array) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} must be floating point, got {_describe(array)}; cast it first")
    return array.astype(jnp.float32) if jnp.finfo(array.dtype).bits < 32 else array


def check_axes(axes: str, **arrays: jax.Array) -> None:
    """Refuse arrays that differ in shape or lack the trailing `axes`, for example `"G, T"`."""
    shapes = {name: tuple(jnp.shape(array)) for name, array in arrays.items()}
    rank = len(axes.split(","))
    if any(len(shape) < rank for shape in shapes.values()):
        raise ValueError(f"expected arrays [..., {axes}], got {shapes}")
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected one shape [..., {axes}] for all, got {shapes}; broadcast first")
    if any(0 in shape[-rank:] for shape in shapes.values()):
        raise ValueError(f"an axis of [..., {axes}] is empty: {shapes}")


def check_mask(mask: jax.Array, name: str = "mask") -> None:
    """Refuse a mask that is not bool: an integer mask turns `~mask` into nonsense."""
    if jnp.asarray(mask).dtype != jnp.bool_:
        raise ValueError(f"{name} must be bool, got {_describe(mask)}; pass {name} != 0")


def check_group(values: jax.Array, name: str = "rewards") -> None:
    """Refuse a last axis of fewer than two: the baseline of one completion is that completion."""
    if jnp.ndim(values) < 1 or jnp.shape(values)[-1] < 2:
        raise ValueError(f"{name} must be [..., G] with G >= 2, got {_describe(values)}")


def check_completions(values: jax.Array, name: str = "rewards") -> None:
    """Refuses a last axis of none."""
    if jnp.ndim(values) < 1 or jnp.shape(values)[-1] < 1:
        raise ValueError(f"{name} must be [..., G] with G >= 1, got {_describe(values)}")


def check_prompts(values: jax.Array, name: str = "rewards") -> None:
    """Refuses fewer than two prompts: the baseline of one is that prompt's."""
    shape = jnp.shape(values)
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise ValueError(f"{name} must be [N, G] with N >= 2, got {_describe(values)}")


def check_nonnegative(**scalars: jax.Array | float) -> None:
    """Refuse negative or NaN scalars; a traced scalar passes, its value being unknown."""
    for name, value in scalars.items():
        if isinstance(value, Tracer):
            continue
        with jax.ensure_compile_time_eval():  # a Python float is known inside a jit, too
            if not jnp.all(jnp.asarray(value) >= 0):
                raise ValueError(f"{name} must be >= 0, got {value}")


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


def check_values(mask: jax.Array, **arrays: jax.Array) -> None:
    """Refuse NaN where `mask` is True. Host code: the arrays must be concrete."""
    for name, array in arrays.items():
        nans = jnp.isnan(array) & mask
        if jnp.any(nans):
            first = tuple(int(i) for i in jnp.argwhere(nans)[0])
            raise ValueError(f"{name} {_describe(array)}: {int(nans.sum())} NaN, first at {first}")


def _describe(array: jax.Array) -> str:
    return f"{jnp.asarray(array).dtype}{list(jnp.shape(array))}"
