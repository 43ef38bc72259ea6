"""`python -m ogrpo.kernels.log_probs.benchmark`: log-probs against the matmul rate, and each other.

Times are of the matrix products alone, then of each version's forward, and of its forward and
backward pass, by `ogrpo.kernels.timing`, `--repeats` times.

    share    useful flops a CPU-second, over those of the three bare products of the same run
    useful   2 M V d forward; 6 M V d forward and backward: logits, dL/dh and dL/dE; and 2 M V d
             more where a version computes the logits again, which the last column leaves out;
             softmax, entropy and gathers count for nothing
    memory   XLA's own figure of the temporary memory of forward and backward, gradients apart

The bare products are E h, dL/dz E and dL/dz^T h on 8,192 tokens of the vocabulary.
"""

import argparse
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.kernels.log_probs import chunked_log_probs, reference_log_probs
from ogrpo.kernels.timing import Timed, compiled, measure, table
from ogrpo.policy.head import HeadFn, token_log_probs

PRODUCT = 8192
WHOLE = 1 << 27  # logits up to which the policy's default keeps them
# Version, and the number of logits above which it computes them again.
VERSIONS: dict[str, tuple[HeadFn, float]] = {
    "reference": (reference_log_probs, float("inf")),
    "policy's default": (partial(token_log_probs, max_logits=WHOLE), WHOLE),
    "chunked, nothing kept": (partial(chunked_log_probs, kept_bytes=0), 0),
    "chunked, all kept": (partial(chunked_log_probs, kept_bytes=1 << 62), float("inf")),
}


def products(hidden: jax.Array, embedding: jax.Array) -> Timed:
    """The three matrix products of a slice, alone."""
    rows = embedding[:PRODUCT]
    d_scores = jnp.ones((hidden.shape[0], rows.shape[0]), hidden.dtype)

    def three(hidden: jax.Array, rows: jax.Array, d_scores: jax.Array) -> list[jax.Array]:
        operands = {"md,vd->mv": (hidden, rows), "mv,vd->md": (d_scores, rows)}
        operands["mv,md->vd"] = (d_scores, hidden)
        return [
            jnp.einsum(equation, *pair, preferred_element_type=jnp.float32)
            for equation, pair in operands.items()
        ]

    flops = 3 * 2 * hidden.shape[0] * rows.shape[0] * hidden.shape[1]
    return compiled("products alone", three, (hidden, rows, d_scores), flops)


def both_passes(kernel: HeadFn) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Gradients with respect to hidden and embedding, of log-probs and entropy."""

    def total(hidden: jax.Array, embedding: jax.Array, ids: jax.Array, t: jax.Array) -> jax.Array:
        out = kernel(hidden, embedding, ids, t)
        return jnp.sum(out.log_probs) + 0.01 * jnp.sum(out.entropy)

    return jax.grad(total, (0, 1))


def programs(args: argparse.Namespace) -> list[Timed]:
    """Everything that is timed, compiled, of an embedding with logits of about 1."""
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (args.rows, args.width), args.dtype)
    scale = jnp.asarray(args.width**-0.5, args.dtype)
    embedding = scale * jax.random.normal(keys[1], (args.vocabulary, args.width), args.dtype)
    ids = jax.random.randint(keys[2], (args.rows, 1), 0, args.vocabulary)
    inputs = hidden, embedding, ids, jnp.float32(0.9)
    timed = [products(hidden, embedding)]
    logits = args.rows * args.vocabulary
    once = 2 * logits * args.width
    for name, (kernel, kept) in VERSIONS.items():
        again = once if logits > kept else 0
        timed.append(compiled(f"{name}, forward", kernel, inputs, once))
        both = both_passes(kernel)
        timed.append(compiled(f"{name}, both", both, inputs, 3 * once + again, again))
    return timed


def main() -> None:
    """Prints time, share of the bare products' rate and memory of each version, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1024, help="M")
    parser.add_argument("--width", type=int, default=896, help="d")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="V; Qwen2.5-0.5B's")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"M={args.rows} d={args.width} V={args.vocabulary} {args.dtype}, jax {jax.__version__}\n")
    timed = programs(args)
    seconds, rows = measure(timed, args.repeats), []
    bare = timed[0].flops / seconds[0]
    for t, s in zip(timed, seconds, strict=True):
        share, once = t.flops / s / bare, (t.flops - t.again) / s / bare
        figures = f"{s:.4f}", f"{t.flops / s / 1e9:.0f}", f"{share:.0%}", f"{once:.0%}"
        rows.append([t.label, *figures, f"{t.temporary / 2**20:,.0f}"])
    header = "program | CPU-s | Gflop per CPU-s | share | share, logits once | temporary MiB"
    print(table(header, rows))


if __name__ == "__main__":
    main()
