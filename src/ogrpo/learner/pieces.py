"""Groups of a batch that was cut by tokens: to the places of its parts and back.

A part has A places, each of a group and some of its completions (`Packing.groups`, `Packing.here`).
"""

from typing import TypeVar

import jax
import jax.numpy as jnp

from ogrpo.batch import Packing, PolicyOutput

Tree = TypeVar("Tree")


def rows_of(tree: Tree, packing: Packing[jax.Array]) -> tuple[Tree, jax.Array]:
    """Gathers arrays [N, ...] as rows [K A, ...] for the places of the parts.

    Returns:
      The tree, any row where a place has no group, and bool [K A, G, 1], False there.
    """
    assert packing.groups is not None
    assert packing.here is not None
    groups = packing.groups.ravel()
    rows = jax.tree.map(lambda x: jnp.take(x, groups, axis=0, mode="clip"), tree)
    return rows, packing.here.reshape(len(groups), -1, 1)


def in_order(
    rows: PolicyOutput[jax.Array], packing: Packing[jax.Array], count: int
) -> PolicyOutput[jax.Array]:
    """Scatters rows [K A, G, T] of a batch cut by tokens to its groups [N, G, T]; 0 elsewhere.

    Args:
      rows: what the parts' places say.
      packing: with `groups` and `here`.
      count: N.
    """

    def back(rows: jax.Array) -> jax.Array:
        return added(jnp.zeros((count, *rows.shape[1:]), rows.dtype), rows, packing)

    return jax.tree.map(back, rows)


def added(so_far: jax.Array, rows: jax.Array, packing: Packing[jax.Array]) -> jax.Array:
    """Adds the rows of parts [K A, G, T] to [N, G, T], where their completions belong."""
    assert packing.groups is not None
    assert packing.here is not None
    present = jnp.where(packing.here.reshape(*rows.shape[:2], 1), rows, 0)
    return so_far.at[packing.groups.ravel()].add(present, mode="drop")
