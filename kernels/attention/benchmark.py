"""`python -m ogrpo.kernels.attention.benchmark`: each version beside the bare matrix products.

Times are of the forward pass, and of the output with all gradients (which is what an update
computes when a layer is computed again), by `ogrpo.kernels.timing`, `--repeats` times.

    share    useful flops a CPU-second, over those of a bare product of the same run
    useful   products of queries and keys that see each other, 4 H D a pair forward and 10 more
             backward; what is masked, softmax and sums count for nothing
    memory   XLA's own figure of the temporary memory of output and gradients

Queries are those of one prompt's completions, all of full length.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.kernels.attention import KERNELS
from ogrpo.kernels.timing import compiled, measure, table
from ogrpo.policy.attention import AttentionFn, KeySegment, causal

BARE = 2048
Arrays = tuple[jax.Array, ...]


def make_inputs(args: argparse.Namespace, length: int) -> Arrays:
    """Returns queries, keys and values of the prompt and of the completions, and a cotangent."""
    rows, key = (1, args.group, length), (args.kv_heads, args.head_dim)
    q = (*rows, args.heads, args.head_dim)
    shapes = q, (1, args.prompt, *key), (1, args.prompt, *key), (*rows, *key), (*rows, *key), q
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(
        jax.random.normal(key, shape, args.dtype) for key, shape in zip(keys, shapes, strict=True)
    )


def output(kernel: AttentionFn, q: jax.Array, *keys: jax.Array) -> jax.Array:
    """Attention of whole completions to their prompt and to themselves."""
    n, g, t = q.shape[:3]
    shared = KeySegment(keys[0], keys[1], jnp.full((n, g, t), keys[0].shape[1], jnp.int32))
    return kernel(q, [shared, KeySegment(keys[2], keys[3], causal(jnp.ones((n, g, t), bool)))])


def both_passes(kernel: AttentionFn, *inputs: jax.Array) -> tuple[jax.Array, Arrays]:
    """Output and gradients with respect to queries, keys and values."""
    out, pull = jax.vjp(partial(output, kernel), *inputs[:-1])
    return out, pull(inputs[-1])


def speed(args: argparse.Namespace, length: int) -> list[list[str]]:
    """Rows of the table for completions of one length: each version's forward and both passes."""
    inputs, square = make_inputs(args, length), jnp.ones((BARE, BARE), args.dtype)
    pairs = args.group * (length * args.prompt + length * (length + 1) // 2)
    flops = 2 * args.heads * args.head_dim * pairs
    bare = partial(jnp.einsum, "ab,bc->ac", preferred_element_type=jnp.float32)
    timed = [compiled("a bare product", bare, (square, square), 2 * BARE**3)]
    for name in args.versions:
        forward, both = (partial(fn, KERNELS[name]) for fn in (output, both_passes))
        timed.append(compiled(f"{name}, forward", forward, inputs[:-1], 2 * flops))
        timed.append(compiled(f"{name}, both", both, inputs, 7 * flops))
    rates = [t.flops / s for t, s in zip(timed, measure(timed, args.repeats), strict=True)]
    return [
        [
            *(str(length), t.label, f"{t.flops / rate:.4f}", f"{rate / rates[0]:.0%}"),
            f"{t.temporary / 2**20:,.1f}",
        ]
        for t, rate in zip(timed[1:], rates[1:], strict=True)
    ]


def main() -> None:
    """Prints Markdown, by default for the small decoder of `benchmarks/side_by_side`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("group", 4), ("prompt", 64), ("heads", 4), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--versions", nargs="+", default=["plain", "blocked"], choices=KERNELS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{vars(args)}, jax {jax.__version__}\n")
    rows = [row for length in args.lengths for row in speed(args, length)]
    print(table("completion | program | CPU-s | share | temporary MiB", rows))


if __name__ == "__main__":
    main()
