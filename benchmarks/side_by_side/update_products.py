"""The machine's own rate of matrix products, flops a CPU-second; run by `update.py`."""

import jax
import jax.numpy as jnp
from worker import Job, cpu_seconds

SQUARE = 2048
TIMED = 1.5
"""CPU-seconds of each product at least."""


def rate(rows: int, depth: int, columns: int) -> float:
    """Measures the rate of one product, called again and again."""
    a, b = jnp.ones((rows, depth)), jnp.ones((depth, columns))
    product = jax.jit(jnp.matmul).lower(a, b).compile()
    jax.block_until_ready(product(a, b))
    begin, calls = cpu_seconds(), 0
    while cpu_seconds() - begin < TIMED:
        jax.block_until_ready(product(a, b))
        calls += 1
    return 2 * rows * depth * columns * calls / (cpu_seconds() - begin)


if __name__ == "__main__":
    job = Job()
    shape = job.shape
    # A square, and one like the update's own: its tokens through the MLP's first matrix.
    tokens = min(8192, shape.prompts * shape.group * shape.completion)
    sizes = [(SQUARE, SQUARE, SQUARE), (tokens, shape.width, shape.intermediate)]
    job.answer({"rate": max(rate(*size) for size in sizes)})
