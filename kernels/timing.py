"""Timing of compiled programs in turns, for the benchmarks of the operations.

One process measures everything in turns, so that a busy machine slows all alike. Time is
CPU-seconds of this process, of which medians are shown.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax


class Timed(NamedTuple):
    """A compiled program, its inputs, the flops that count, and its temporary memory in bytes."""

    label: str
    run: Callable[..., object]
    inputs: tuple[jax.Array, ...]
    flops: int
    again: int
    """Flops, among those that count, of computing logits a second time."""
    temporary: int


def compiled(
    label: str,
    function: Callable[..., object],
    inputs: tuple[jax.Array, ...],
    flops: int,
    again: int = 0,
) -> Timed:
    """Returns the program compiled ahead of time, so that its memory is known before it runs."""
    program = jax.jit(function).lower(*inputs).compile()
    memory = program.memory_analysis()
    return Timed(label, program, inputs, flops, again, memory.temp_size_in_bytes if memory else 0)


def measure(timed: Sequence[Timed], repeats: int) -> list[float]:
    """Returns the median CPU-seconds of each program, called in turns after a call of each."""

    def cpu_seconds(timed: Timed) -> float:
        before = time.process_time()
        jax.block_until_ready(timed.run(*timed.inputs))
        return time.process_time() - before

    turns = [[cpu_seconds(t) for t in timed] for _ in range(1 + repeats)][1:]
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def table(header: str, rows: list[list[str]]) -> str:
    """Returns a Markdown table; the header's cells stand between bars."""
    rule = "|---" * len(header.split(" | ")) + "|"
    return "\n".join([f"| {header} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])
