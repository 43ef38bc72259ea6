"""Cuts of what a sweep walks: the vocabulary into slices, the rows into blocks."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
from jax import lax

Tree = TypeVar("Tree")


class Cut(NamedTuple):
    """The vocabulary as V mod width tokens (or width of them), then `steps` slices of width."""

    first: int
    width: int
    steps: int
    kept: int

    @property
    def first_kept(self) -> int:
        """The first slice that is kept."""
        return self.steps - self.kept

    def start(self, i: jax.Array | int) -> jax.Array | int:
        """Returns the first token of slice i; those before it are `first` tokens."""
        return self.first + i * self.width


def cut(size: int, width: int, kept: int) -> Cut:
    """A vocabulary of that size, the last `kept` slices of which are kept."""
    width = min(width, size)
    steps = -(-size // width) - 1
    return Cut(size - steps * width, width, steps, min(kept, steps))


Block = jax.Array | int
"""The number of one."""


class Blocks(NamedTuple):
    """All rows as so many blocks of a size, one after the other."""

    number: int
    size: int

    @property
    def total(self) -> int:
        """Rows, padding included."""
        return self.number * self.size

    def start(self, block: Block) -> Block:
        """Its first row."""
        return block * self.size

    def over(self, step: Callable[[Block, Tree], Tree], carry: Tree) -> Tree:
        """Returns `carry` after a step for each block."""
        return step(0, carry) if self.number == 1 else lax.fori_loop(0, self.number, step, carry)

    def read(self, block: Block, arrays: Tree) -> Tree:
        """Returns a block's rows of arrays [M, ...]."""
        if self.number == 1:
            return arrays
        start = self.start(block)
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, self.size), arrays)

    def change(self, block: Block, arrays: Tree, function: Callable[[Tree], Tree]) -> Tree:
        """Returns arrays [M, ...] with a function of a block's rows in their place."""
        new = function(self.read(block, arrays))
        if self.number == 1:
            return new
        start = self.start(block)
        return jax.tree.map(
            lambda x, mine: lax.dynamic_update_slice_in_dim(x, mine, start, 0), arrays, new
        )


def blocks(rows: int, most: int | None) -> Blocks:
    """Even ones of at most `most`, one if it is None; what they hold beyond `rows` is padding."""
    count = 1 if most is None else max(1, -(-rows // most))
    return Blocks(count, -(-rows // count))
