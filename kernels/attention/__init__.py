"""Attention over segments of keys.

plain     all scores at once (`ogrpo.policy.attention.attend`): the oracle, the fastest of few keys
blocked   a block of keys at a time, in XLA: any device, memory linear in the tokens

The accelerators' own kernels are not offered. A prompt that G completions share would go through
one call, a completion's own keys through another, and their log-sum-exps would join the two. In JAX
0.10.2 `jax.nn.dot_product_attention(implementation="cudnn", return_residual=True)` gives that sum
but leaves its gradient out, and splash attention's `save_residuals` has no gradient at all. One
call over both would need the prompt's keys G times.
"""

from collections.abc import Sequence

import jax

from ogrpo.kernels.attention.blocked import blocked_attention, tile_for
from ogrpo.policy.attention import AttentionFn, KeySegment, attend
from ogrpo.policy.flops import Tile

KERNELS: dict[str, AttentionFn] = {"plain": attend, "blocked": blocked_attention}
NAMES = ("auto", *KERNELS)
LEAST_KEYS = 128
"""Keys of a query, seen or not, from which on `auto` takes blocks. On a CPU they win from 128 on by
half of the time (docs/performance.md); below, the plain version keeps small runs what they were."""


def check_available(name: str) -> None:
    """Raises a ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(
            f"there is no attention {name!r}: choose {', '.join(NAMES)}; cuDNN's and splash"
            " attention have no gradient through the log-sum-exp by which a shared prompt's keys"
            " are joined with a completion's own: blocked shares the prompt on any device"
        )


def blocks(name: str, keys: int) -> bool:
    """Whether a query of so many keys, seen or not, is computed by blocks."""
    check_available(name)
    return name == "blocked" or (name == "auto" and keys >= LEAST_KEYS)


def step_of(name: str, keys: int, platform: str) -> Tile | None:
    """Returns what is computed at once where a query has so many keys; None: all of its scores."""
    return tile_for(platform) if blocks(name, keys) else None


def describe(name: str, platform: str) -> str:
    """Returns in words what a name stands for on a platform, for the first lines of a run."""
    check_available(name)
    text = f"blocked from {LEAST_KEYS} keys on, plain below" if name == "auto" else name
    if platform == "cpu" or name == "plain":
        return text
    size = tile_for(platform)
    step = f"{size.queries} queries and {size.keys} keys a step"
    return f"{text}; {step}, in XLA, not yet measured on a {platform}"


def kernel(name: str, *, blocked: AttentionFn = blocked_attention) -> AttentionFn:
    """Returns the attention of a name; with "auto" it goes by the number of keys at each call.

    Args:
      name: of `NAMES`.
      blocked: how blocks are walked; on a mesh, `attention_over_mesh` of it.
    """
    check_available(name)
    if name != "auto":
        return blocked if name == "blocked" else KERNELS[name]

    def by_size(queries: jax.Array, segments: Sequence[KeySegment]) -> jax.Array:
        keys = sum(segment.keys.shape[-3] for segment in segments)
        return (blocked if blocks(name, keys) else attend)(queries, segments)

    return by_size
