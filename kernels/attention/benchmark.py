"""`python -m ogrpo.kernels.attention.benchmark`: each version beside the bare matrix products.

Times are of the forward pass, and of the output with all gradients (which is what an update
computes when a layer is computed again), by `ogrpo.kernels.timing`, `--repeats` times.

    share    useful flops a CPU-second, over those of a bare product of the same run
    useful   products of queries and keys that see each other, 4 H D a pair forward and 10 more
             backward; what is masked, softmax and sums count for nothing
    memory   XLA's own figure of the temporary memory of output and gradients

Queries are those of one prompt's completions, all of full length. Errors are the largest over all
entries against the plain version in float64 on the same inputs, over the largest entry.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.kernels.attention import KERNELS
from ogrpo.kernels.timing import Timed, compiled, measure, relative_errors, table
from ogrpo.policy.attention import AttentionFn, KeySegment, attend, causal

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


def forward(kernel: AttentionFn, *inputs: jax.Array) -> jax.Array:
    """The output alone."""
    return output(kernel, *inputs[:-1])


def both_passes(kernel: AttentionFn, *inputs: jax.Array) -> tuple[jax.Array, Arrays]:
    """Output and gradients with respect to queries, keys and values."""
    out, pull = jax.vjp(partial(output, kernel), *inputs[:-1])
    return out, pull(inputs[-1])


def programs(args: argparse.Namespace, length: int) -> list[Timed]:
    """A bare product, then each version's forward and both passes."""
    inputs, square = make_inputs(args, length), jnp.ones((BARE, BARE), args.dtype)
    pairs = args.group * (length * args.prompt + length * (length + 1) // 2)
    flops = 2 * args.heads * args.head_dim * pairs
    bare = partial(jnp.einsum, "ab,bc->ac", preferred_element_type=jnp.float32)
    timed = [compiled("a bare product", bare, (square, square), 2 * BARE**3)]
    for name in args.versions:
        kernel = KERNELS[name]
        timed.append(compiled(f"{name}, forward", partial(forward, kernel), inputs, 2 * flops))
        timed.append(compiled(f"{name}, both", partial(both_passes, kernel), inputs, 7 * flops))
    return timed


def speed(args: argparse.Namespace, length: int) -> list[list[str]]:
    """Rows of the table for completions of one length."""
    timed = programs(args, length)
    seconds, rows = measure(timed, args.repeats), []
    bare = timed[0].flops / seconds[0]
    for t, s in list(zip(timed, seconds, strict=True))[1:]:
        share = t.flops / s / bare
        rows.append(
            [str(length), t.label, f"{s:.4f}", f"{share:.0%}", f"{t.temporary / 2**20:,.1f}"]
        )
    return rows


def errors(kernel: AttentionFn, inputs: Arrays) -> list[float]:
    """Returns those of the output and of gradients of queries, keys and values (both segments)."""
    with jax.enable_x64(True):
        wide = [x.astype(jnp.float64) for x in inputs]
        exact = jax.jit(partial(both_passes, attend))(*wide)
        exact = [np.asarray(x) for x in jax.tree.leaves(exact)]
    each = relative_errors(jax.tree.leaves(jax.jit(partial(both_passes, kernel))(*inputs)), exact)
    return [each[0], each[1], max(each[2], each[4]), max(each[3], each[5])]


def accuracy(args: argparse.Namespace) -> list[list[str]]:
    """Rows of the table of errors, for each dtype."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        inputs = make_inputs(argparse.Namespace(**{**vars(args), "dtype": dtype}), 1024)
        for name in args.versions:
            shown = [f"{error:.0e}" for error in errors(KERNELS[name], inputs)]
            rows.append([f"{name}, {dtype}", *shown])
    return rows


def parse() -> argparse.Namespace:
    """Shapes, by default those of the small decoder of `benchmarks/update`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("group", 4), ("prompt", 64), ("heads", 4), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--versions", nargs="+", default=["plain", "blocked"], choices=KERNELS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Prints Markdown."""
    args = parse()
    print(f"{vars(args)}, jax {jax.__version__}\n")
    rows = [row for length in args.lengths for row in speed(args, length)]
    print(table("completion | program | CPU-s | share | temporary MiB", rows), end="\n\n")
    print(table("error against float64 | output | queries | keys | values", accuracy(args)))


if __name__ == "__main__":
    main()
