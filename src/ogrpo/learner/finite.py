"""Checks for NaN and infinity: an update with one is skipped, and a state with one is not saved."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogrpo.learner.hosts import fetch

T = TypeVar("T")


class NotFiniteError(ValueError):
    """Raised where weights or a state that are to be kept have NaN or infinity."""


def all_finite(tree: Any, *, also: Array | bool = True) -> Array:
    """Whether no float of a tree is NaN or infinite and `also` holds, as a bool scalar.

    One leaf is checked after the other, so that this takes a byte for each number of the largest.
    """
    finite = jnp.asarray(also)
    for leaf in jax.tree.leaves(tree):
        if _is_float(leaf):
            finite = jnp.all(jnp.isfinite(leaf) & finite)
    return finite


def choose(condition: Array, one: T, other: T) -> T:
    """Returns `one` where a bool scalar holds, else `other`, bit for bit."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def names(tree: Any) -> list[str]:
    """Returns the names of a tree's leaves."""
    return [_name(path) for path, _ in jax.tree.leaves_with_path(tree)]


def finite_leaves(tree: Any) -> list[Array]:
    """Returns for each leaf of a tree whether it is finite, as bool scalars."""
    return [all_finite(leaf) for leaf in jax.tree.leaves(tree)]


def nonfinite(tree: Any) -> list[str]:
    """Returns the names of leaves, on a device or on the host, that are not finite.

    With several processes all call this.
    """
    leaves = jax.tree.leaves_with_path(tree)
    placed = {_name(path): leaf for path, leaf in leaves if isinstance(leaf, jax.Array)}
    flags = fetch(_leaf_flags([*placed.values()]))
    flagged = dict(zip(placed, map(bool, flags), strict=True))
    for path, leaf in leaves:
        if not isinstance(leaf, jax.Array):
            flagged[_name(path)] = not _is_float(leaf) or bool(np.isfinite(leaf).all())
    return [name for name, is_finite in flagged.items() if not is_finite]


def require_finite(tree: Any, refusal: str) -> None:
    """Raises `NotFiniteError` with `refusal` and the names of leaves that are not finite."""
    if bad := nonfinite(tree):
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        raise NotFiniteError(f"{refusal}: NaN or infinity in {shown}")


_leaf_flags = jax.jit(finite_leaves)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
