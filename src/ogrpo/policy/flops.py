"""The cost of a decoder in whole numbers from shapes: operations, parameters, bytes.

A multiply-accumulate is 2 FLOPs. Counted are the matrix products as this package computes them:
padding included, attention over whole rectangles (what the causal mask hides is computed and then
masked) or, by blocks, over those that are walked, each prompt once for its G completions, logits
for completion tokens only. Packed rows are always counted whole. Not counted: element-wise work
(norms, softmax, rotation, activations), the draw of a token and the optimizer. The backward pass of
`chunked` log-probs (`ogrpo.kernels.log_probs`) computes again the logits beyond `kept_bytes`: here
that is all of them where they are more than `MAX_LOGITS`, and else none.

    projections    L (2 d H D + 2 d K D + 3 d f)    multiply-accumulates per token
    attention      2 L H D                          per pair of a query and a key: scores and mix
    head           d V                              per row of logits

with L layers, d `hidden_size`, f `intermediate_size`, H `num_heads`, K `num_kv_heads`, D
`head_dim`, V `vocab_size`; a `Workload` has the numbers of tokens, pairs and rows. A backward pass
is twice the forward (the gradient of each product is one product for either factor: Kaplan et al.
2020, arXiv:2001.08361, section 2.1) plus what it computes again. With adapters (`lora.py`), the
projections and the head are frozen: their products have one gradient, not two.

>>> from ogrpo.policy.config import SHAPES
>>> update_flops(SHAPES["tiny"], padded(n=2, g=4, p=3, t=6), remat="products").total
34025472
>>> sample_flops(SHAPES["tiny"], n=2, g=4, p=3, t=6).total
9638912
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import jax

from ogrpo.policy.config import MLP, DecoderConfig
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.log_probs import MAX_LOGITS, in_one_call

REMAT = ("none", "products", "full")
"""A layer keeps everything, the results of its projections, or its input (`decoder.run_layers`)."""


class Tile(NamedTuple):
    """A step of blocked attention (`ogrpo.kernels.attention`): at most so many of each."""

    queries: int
    keys: int


class Adapter(NamedTuple):
    """Low-rank adapters, for their cost."""

    rank: int
    targets: tuple[str, ...]


class Workload(NamedTuple):
    """The sizes of a batch that its cost follows from: `parts` equal ones, one after the other."""

    tokens: int
    """Tokens of a part, padding included."""
    pairs: int
    """Pairs of a query and a key that attention computes, per head and layer."""
    groups: int
    """Next-token distributions of prompts' last tokens."""
    members: int
    """Completions of each prompt."""
    rest: int
    """Other next-token distributions."""
    parts: int = 1
    blocked: bool = False
    """Whether attention goes by blocks, whose backward pass computes its scores again."""

    @property
    def head_rows(self) -> tuple[int, int]:
        """Rows of the head's call for first tokens, and of the other (`log_probs.both_queries`)."""
        if in_one_call(self.groups, self.members):
            return 0, self.groups * self.members + self.rest
        return self.groups, self.rest


def padded(
    *, n: int, g: int, p: int, t: int, microbatches: int = 1, step: Tile | None = None
) -> Workload:
    """Returns the layout of prompts [n, p] with completions [n, g, t], all of full length.

    With `step` attention walks blocks; padding and shorter completions would leave out more.

    Raises:
      ValueError: n is no multiple of `microbatches`.
    """
    if n % microbatches:
        raise ValueError(f"{n} prompts cannot be cut into {microbatches} equal microbatches")
    n //= microbatches
    pairs = p * p + g * t * (p + t)
    if step is not None:
        completion = [(size, _walked(seen, t, step)) for size, seen in _tiles(t, step)]
        prompt = sum(size * _walked(seen, p, step) for size, seen in _tiles(p, step))
        pairs = prompt + g * sum(size * (_walked(p, p, step) + keys) for size, keys in completion)
    return Workload(
        tokens=n * (p + g * t),
        pairs=n * pairs,
        groups=n,
        members=g,
        rest=n * g * (t - 1),
        parts=microbatches,
        blocked=step is not None,
    )


def equal_parts(length: int, most: int) -> tuple[int, int]:
    """Returns the size and the number of the fewest parts of at most `most` that hold a length."""
    count = -(-length // most)
    return -(-length // count), count


def _tiles(length: int, step: Tile) -> list[tuple[int, int]]:
    """Returns the queries of each tile of a causal row, padding included, and its last key."""
    size, count = equal_parts(length, step.queries)
    return [(size, min((i + 1) * size, length)) for i in range(count)]


def _walked(seen: int, size: int, step: Tile) -> int:
    """Returns the keys of the blocks that hold the first `seen` of `size`."""
    width, _ = equal_parts(size, step.keys)
    return -(-seen // width) * width


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by the products that they are spent on."""

    projections: int = 0
    attention: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.projections + self.attention + self.head

    def __add__(self, other: "Flops") -> "Flops":
        """Adds by component."""
        return Flops(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "Flops":
        """Repeats every component."""
        return Flops(self.projections * times, self.attention * times, self.head * times)


def product_flops(config: DecoderConfig, *, tokens: int, pairs: int, rows: int) -> Flops:
    """Returns the one formula: projections of tokens, attention of pairs, logits of rows."""
    macs = sum(math.prod(sides) for sides in config.projections.values())
    return Flops(
        projections=2 * config.num_layers * macs * tokens,
        attention=4 * config.num_layers * config.num_heads * config.head_dim * pairs,
        head=2 * config.hidden_size * config.vocab_size * rows,
    )


def forward_flops(
    config: DecoderConfig, layout: Workload, *, adapter: Adapter | None = None
) -> Flops:
    """Returns the FLOPs of one forward pass (`log_probs`, or `packing` for a packed layout)."""
    rows = sum(layout.head_rows)
    products = product_flops(config, tokens=layout.tokens, pairs=layout.pairs, rows=rows)
    if adapter is None:
        return products * layout.parts
    width = sum(sum(config.projections[name]) for name in adapter.targets)
    return products * layout.parts + _low_rank(config, layout, adapter, width)


def _low_rank(config: DecoderConfig, layout: Workload, adapter: Adapter, width: int) -> Flops:
    """Returns the FLOPs of products of rank r with so many inputs and outputs."""
    tokens = layout.parts * layout.tokens
    return Flops(projections=2 * config.num_layers * tokens * adapter.rank * width)


def recompute_flops(
    config: DecoderConfig, layout: Workload, *, remat: str, max_logits: int = MAX_LOGITS
) -> Flops:
    """Returns what a backward pass computes a second time: see `decoder.run_layers`, `log_probs`.

    With `remat` "products" or "full" the attention, with "full" also the projections, except the
    MLP's last, whose result no gradient needs. Attention by blocks computes its scores again, and
    with "full" all of it once more. The logits, where they are taken in chunks because there are
    more than `max_logits` of them; those of first tokens with a call of their own never are.

    Raises:
      ValueError: a `remat` that is not one of `REMAT`.
    """
    (scores_again, all_again), rows = _redone(remat), layout.head_rows[1]
    chunked = rows > max(1, max_logits // config.vocab_size)
    whole = product_flops(
        config, tokens=layout.tokens, pairs=layout.pairs, rows=rows if chunked else 0
    )
    if layout.blocked:
        attention = whole.attention // 2 + all_again * whole.attention
    else:
        attention = scores_again * whole.attention
    last = 2 * config.num_layers * math.prod(config.projections["down_proj"]) * layout.tokens
    projections = all_again * (whole.projections - last)
    return replace(whole, projections=projections, attention=attention) * layout.parts


def update_flops(
    config: DecoderConfig, layout: Workload, *, remat: str, adapter: Adapter | None = None
) -> Flops:
    """Returns the FLOPs of one update: 3 forward passes and what is computed again."""
    forward = forward_flops(config, layout)
    again = recompute_flops(config, layout, remat=remat)
    if adapter is None:
        return forward * 3 + again
    (scores_again, all_again), sides = _redone(remat), config.projections
    if "o_proj" not in adapter.targets and not all_again and not layout.blocked:
        again = replace(again, attention=again.attention // 2)  # scores alone: no use of the mix
    backward = Flops(forward.projections, 2 * forward.attention, forward.head)
    # Again B A x, and with the projections also A x; of the MLP's last only A x is needed.
    up = sum(sides[name].outputs for name in adapter.targets if name != "down_proj")
    down = sum(sides[name].inputs for name in adapter.targets)
    width = 3 * sum(sum(sides[name]) for name in adapter.targets)
    width += scores_again * up + all_again * down
    return forward + backward + again + _low_rank(config, layout, adapter, width)


def sample_flops(
    config: DecoderConfig,
    *,
    n: int,
    g: int,
    p: int,
    t: int,
    lengths: Sequence[int] | None = None,
    least_read: int | None = None,
    halvings: int = 0,
) -> Flops:
    """Returns the FLOPs of one `sample`: prompts [n, p] once, then a step per further token.

    Args:
      config: the decoder's shape.
      n: prompts.
      g: completions of each.
      p: tokens of a prompt, padding included.
      t: tokens of a completion, at most.
      lengths: of the n g completions drawn; by default all have t tokens.
      least_read: as `sample` has it: slots of the cache that a step reads at least. None: all t.
      halvings: as `sample` has it: how often the rows are halved as completions end.

    Raises:
      ValueError: `lengths` are not n g, or outside 1..t.
    """
    rows = n * g
    lengths = [t] * rows if lengths is None else [int(length) for length in lengths]
    if len(lengths) != rows or not 1 <= min(lengths) <= max(lengths) <= t:
        raise ValueError(
            f"{len(lengths)} lengths from {min(lengths, default=0)} to {max(lengths, default=0)}:"
            f" n g = {rows} completions have between 1 and t = {t} tokens each"
        )
    spent = product_flops(config, tokens=n * p, pairs=n * p * p, rows=n)
    sizes, at = [size for turn in range(halvings) if (size := rows >> turn + 1)], 1
    longest = sorted(lengths, reverse=True)
    for size, fewer in zip([rows, *sizes], [*sizes, 0], strict=True):
        # Step `at` is taken while more than `fewer` rows go on; `at` - 1 slots are written by then.
        for read in doubling(least_read, t):
            steps = max(0, min(longest[fewer], read + 2) - at)
            pairs = size * (p + read + 1)
            spent += product_flops(config, tokens=size, pairs=pairs, rows=size) * steps
            at += steps
    return spent


def doubling(least: int | None, length: int) -> tuple[int, ...]:
    """Returns numbers of slots to read: from `least`, each twice the last, to all of `length`."""
    sizes = []
    while least is not None and least < length:
        sizes.append(least)
        least *= 2
    return (*sizes, length)


def parameters(config: DecoderConfig) -> int:
    """Counts the parameters of `init_params`."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(param_shapes(config)))


def activation_bytes(config: DecoderConfig, layout: Workload, *, itemsize: int, remat: str) -> int:
    """Returns the bytes that the layers keep for the backward pass of a part.

    Of each token and layer the input, and with `remat` "products" also the results of the
    projections that a gradient needs (all but the MLP's last); where attention is by blocks its
    output, and a float32 for each head.

    Raises:
      ValueError: "none", where it is XLA's choice which element-wise results to keep, or not one of
        `REMAT`.
    """
    (scores_again, all_again), width = _redone(remat), config.hidden_size
    if not scores_again:
        raise ValueError(f"remat {remat!r}: what it keeps is not counted; take products or full")
    if not all_again:
        width += sum(side.outputs for name, side in config.projections.items() if name != MLP[-1])
    heads = 0 if all_again or not layout.blocked else config.num_heads
    per_token = itemsize * (width + heads * config.head_dim) + 4 * heads
    return config.num_layers * layout.tokens * per_token


def logits_bytes(config: DecoderConfig, layout: Workload, *, max_logits: int = MAX_LOGITS) -> int:
    """Returns the bytes of the float32 logits alive at once: all rows of a part, or one chunk."""
    rows = min(layout.head_rows[1], max(1, max_logits // config.vocab_size))
    return 4 * config.vocab_size * rows


def score_bytes(config: DecoderConfig, layout: Workload) -> int:
    """Returns the bytes of a layer's float32 scores, which `attention.attend` holds whole."""
    return 4 * config.num_heads * layout.pairs


def cache_bytes_per_token(config: DecoderConfig, itemsize: int) -> int:
    """Returns the bytes of the keys and values of one token in all layers."""
    return 2 * itemsize * config.num_layers * config.num_kv_heads * config.head_dim


def _redone(remat: str) -> tuple[bool, bool]:
    """Returns whether a backward pass computes a layer's attention again, and its projections."""
    if remat not in REMAT:
        raise ValueError(f"remat is {remat!r}: choose one of {', '.join(REMAT)}")
    return remat != "none", remat == "full"
