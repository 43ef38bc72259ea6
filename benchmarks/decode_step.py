"""A decoding step's products alone, and whole steps: `python -m benchmarks.decode_step`.

Random weights of SmolLM2-135M's shape; prompts of 64 tokens, four completions each, or one row.
A step is a 32nd of what a call of 64 tokens takes more than one of 32.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.side_by_side.harness import spread
from ogrpo.policy import Params, init_params
from ogrpo.policy.config import SHAPES, DecoderConfig
from ogrpo.policy.decoder import product, unstack
from ogrpo.protocol import Sampling
from ogrpo.serving.bridge import embedded_engine


def measured(function, *arguments) -> np.ndarray:
    """CPU-milliseconds of a 32nd of each of five calls, after one that compiles."""
    times = [time.process_time()]
    for _ in range(6):
        jax.block_until_ready(function(*arguments))
        times.append(time.process_time())
    return np.diff(times)[1:] * 1e3 / 32


@jax.jit
def products(x: jax.Array, weights: list[jax.Array]) -> tuple[jax.Array, None]:
    def turn(x: jax.Array, _: None) -> tuple[jax.Array, None]:  # none can be left out
        return x + 1e-9 * sum(product(x[:, : w.shape[1]], w).max() for w in weights), None

    return jax.lax.scan(turn, x, length=32)


def step(config: DecoderConfig, params: Params, rows: int) -> np.ndarray:
    group = min(rows, 4)
    engine = embedded_engine(config, eos_id=0, batch_size=rows // group, prompt_length=64)
    engine.publish(params, 0)
    prompts = [*np.random.default_rng(0).integers(1, 49_152, (rows // group, 64), np.int32)]
    samplings = [Sampling(1.0, tokens, group) for tokens in (64, 32)]
    return np.subtract(*(measured(engine.generate, prompts, each, 0) for each in samplings))


def main() -> None:
    print("dtype | rows | products, CPU-ms | a step, CPU-ms")
    config = SHAPES["smollm2-135m"]
    for dtype in (jnp.float32, jnp.bfloat16):
        params = init_params(config, jax.random.key(0), dtype)
        weights = [leaf for leaf in jax.tree.leaves(unstack(params)) if leaf.ndim == 2]
        for rows in (1, 8, 32, 64):
            alone = measured(products, jnp.ones((rows, 1536), dtype), weights)
            figures = (spread([*each]) for each in (alone, step(config, params, rows)))
            print(dtype.__name__, rows, *figures, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
