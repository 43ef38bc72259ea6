"""`python -m ogrpo.kernels.benchmark OPERATION`: each version beside the bare matrix products.

    attention    queries of one prompt's completions, all of full length
    log-probs    log-probs and entropy of a table with logits of about 1

Times are of the forward pass, and of the output with all gradients (which is what an update
computes when a layer is computed again). One process measures all programs of a size in turns, so
that a busy machine slows all alike; a time is the median CPU-seconds of `--repeats` calls.

    share    useful flops a CPU-second, over those of the bare products of the same run
    useful   attention: products of queries and keys that see each other, 4 H D a pair forward and
             10 more backward. Log-probs: 2 M V d forward, 6 M V d with gradients, and 2 M V d more
             where a version computes the logits again, which the next column leaves out. What is
             masked, softmax, sums and gathers count for nothing
    memory   XLA's own figure of the temporary memory

The bare products are a square one, or E h, dL/dz E and dL/dz^T h on 8,192 tokens.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.kernels import attention
from ogrpo.kernels.log_probs import chunked_log_probs, reference_log_probs
from ogrpo.policy.attention import AttentionFn, KeySegment, causal
from ogrpo.policy.log_probs import MAX_LOGITS, HeadFn, token_log_probs

BARE, PRODUCT = 2048, 8192
# Version, and the number of logits above which it computes them again.
HEADS: dict[str, tuple[HeadFn, float]] = {
    "reference": (reference_log_probs, float("inf")),
    "policy's default": (token_log_probs, MAX_LOGITS),
    "chunked, nothing kept": (partial(chunked_log_probs, kept_bytes=0), 0),
    "chunked, all kept": (partial(chunked_log_probs, kept_bytes=1 << 62), float("inf")),
}
Arrays = tuple[jax.Array, ...]
wide_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


class Timed(NamedTuple):
    """A program, its inputs and the flops that count."""

    label: str
    run: Callable[..., object]
    inputs: Arrays
    flops: int
    again: int = 0
    """Flops, among those that count, of computing logits a second time."""


def attention_inputs(args: argparse.Namespace, length: int) -> Arrays:
    """Returns queries, keys and values of the prompt and of the completions, and a cotangent."""
    rows, key = (1, args.group, length), (args.kv_heads, args.head_dim)
    q = (*rows, args.heads, args.head_dim)
    shapes = q, (1, args.prompt, *key), (1, args.prompt, *key), (*rows, *key), (*rows, *key), q
    keys = jax.random.split(jax.random.key(0), len(shapes))
    pairs = zip(keys, shapes, strict=True)
    return tuple(jax.random.normal(key, shape, args.dtype) for key, shape in pairs)


def attention_output(kernel: AttentionFn, q: jax.Array, *keys: jax.Array) -> jax.Array:
    """Returns attention of whole completions to their prompt and to themselves."""
    n, g, t = q.shape[:3]
    shared = KeySegment(keys[0], keys[1], jnp.full((n, g, t), keys[0].shape[1], jnp.int32))
    return kernel(q, [shared, KeySegment(keys[2], keys[3], causal(jnp.ones((n, g, t), bool)))])


def attention_gradients(kernel: AttentionFn, *inputs: jax.Array) -> tuple[jax.Array, Arrays]:
    """Returns output and gradients with respect to queries, keys and values."""
    out, pull = jax.vjp(partial(attention_output, kernel), *inputs[:-1])
    return out, pull(inputs[-1])


def attention_programs(args: argparse.Namespace, length: int) -> list[Timed]:
    """Returns a bare product, then each version's passes over completions of one length."""
    inputs, square = attention_inputs(args, length), jnp.ones((BARE, BARE), args.dtype)
    pairs = args.group * (length * args.prompt + length * (length + 1) // 2)
    flops = 2 * args.heads * args.head_dim * pairs
    timed = [Timed("bare", partial(wide_einsum, "ab,bc->ac"), (square, square), 2 * BARE**3)]
    for name in args.versions:
        kernel = attention.KERNELS[name]
        forward, both = (partial(fn, kernel) for fn in (attention_output, attention_gradients))
        timed.append(Timed(f"{name}, forward", forward, inputs[:-1], 2 * flops))
        timed.append(Timed(f"{name}, both", both, inputs, 7 * flops))
    return timed


def log_probs_programs(args: argparse.Namespace, rows: int) -> list[Timed]:
    """Returns the products of a slice alone, then each version's passes over so many rows."""
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (rows, args.width), args.dtype)
    scale = jnp.asarray(args.width**-0.5, args.dtype)
    embedding = scale * jax.random.normal(keys[1], (args.vocabulary, args.width), args.dtype)
    ids = jax.random.randint(keys[2], (rows, 1), 0, args.vocabulary)
    inputs = hidden, embedding, ids, jnp.float32(0.9)
    part = embedding[:PRODUCT]
    d_scores = jnp.ones((rows, len(part)), hidden.dtype)

    def three(hidden: jax.Array, part: jax.Array, d_scores: jax.Array) -> Arrays:
        pairs = {"md,vd->mv": (hidden, part), "mv,vd->md": (d_scores, part)}
        pairs["mv,md->vd"] = (d_scores, hidden)
        return tuple(wide_einsum(equation, *pair) for equation, pair in pairs.items())

    def total(kernel: HeadFn, *inputs: jax.Array) -> jax.Array:
        out = kernel(*inputs)
        return jnp.sum(out.log_probs) + 0.01 * jnp.sum(out.entropy)

    once = 2 * rows * args.vocabulary * args.width
    timed = [Timed("bare", three, (hidden, part, d_scores), 6 * rows * len(part) * args.width)]
    for name, (kernel, kept) in HEADS.items():
        again = once if rows * args.vocabulary > kept else 0
        timed.append(Timed(f"{name}, forward", kernel, inputs, once))
        both = jax.grad(partial(total, kernel), (0, 1))
        timed.append(Timed(f"{name}, both", both, inputs, 3 * once + again, again))
    return timed


def measured(programs: list[Timed], repeats: int) -> list[list[str]]:
    """Returns a row for each program but the first: seconds, shares of its rate, and memory."""
    compiled = [jax.jit(one.run).lower(*one.inputs).compile() for one in programs]

    def cpu_seconds(index: int) -> float:
        before = time.process_time()
        jax.block_until_ready(compiled[index](*programs[index].inputs))
        return time.process_time() - before

    turns = [[*map(cpu_seconds, range(len(programs)))] for _ in range(1 + repeats)][1:]
    seconds, rows = [statistics.median(column) for column in zip(*turns, strict=True)], []
    bare = programs[0].flops / seconds[0]
    for one, program, s in zip(programs[1:], compiled[1:], seconds[1:], strict=True):
        shares = (f"{flops / s / bare:.0%}" for flops in (one.flops, one.flops - one.again))
        memory = program.memory_analysis()
        rows.append([one.label, f"{s:.4f}", f"{one.flops / s / 1e9:.0f}", *shares])
        rows[-1].append(f"{memory.temp_size_in_bytes / 2**20:,.1f}" if memory else "-")
    return rows


def main() -> None:
    """Prints Markdown, by default of the shapes that docs/performance.md shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    operations = parser.add_subparsers(dest="operation", required=True)
    of_attention, of_log_probs = map(operations.add_parser, ("attention", "log-probs"))
    for name, value in (("group", 4), ("prompt", 64), ("heads", 4), ("head-dim", 64)):
        of_attention.add_argument(f"--{name}", type=int, default=value)
    of_attention.add_argument("--kv-heads", type=int, default=2)
    of_attention.add_argument("--lengths", dest="sizes", type=int, nargs="+")
    names = list(attention.KERNELS)
    of_attention.add_argument("--versions", nargs="+", default=names, choices=names)
    of_attention.set_defaults(programs=attention_programs, sizes=[128, 256, 512, 1024, 2048])
    of_log_probs.add_argument("--rows", dest="sizes", type=int, nargs="+", help="M")
    of_log_probs.add_argument("--width", type=int, default=896, help="d")
    of_log_probs.add_argument("--vocabulary", type=int, default=151_936, help="V; Qwen2.5-0.5B's")
    of_log_probs.set_defaults(programs=log_probs_programs, sizes=[1024])
    for one in (of_attention, of_log_probs):
        one.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
        one.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    shown = {name: value for name, value in vars(args).items() if name != "programs"}
    print(f"{shown}, jax {jax.__version__}\n")
    header = "size | program | CPU-s | Gflop per CPU-s | share | logits once | temporary MiB"
    print(f"| {header} |", "|---" * len(header.split(" | ")) + "|", sep="\n")
    for size in args.sizes:
        for row in measured(args.programs(args, size), args.repeats):
            print(f"| {size} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
