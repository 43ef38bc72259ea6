"""What a decoder costs, in whole numbers from shapes: operations, parameters, bytes. No JAX.

A multiply-accumulate is 2 FLOPs. Counted are the matrix products as this package computes them:
padding included, attention over whole rectangles (what the causal mask hides is computed and then
masked) or, by blocks, over those that are walked, each prompt once for its G completions, logits
for completion tokens only. Packed rows are always counted whole. Not counted: element-wise work
(norms, softmax, rotation, activations), the draw of a token and the optimizer.

    tokens of a batch        N (P + G T)
    a layer's projections    m = 2 d H D + 2 d K D + 3 d f        multiply-accumulates per token
    attention of a layer     2 H D N (P^2 + G T (P + T))          scores and mix
                             2 H D (pairs of the blocks walked)   by blocks (`Step`)
    head                     d V N (1 + G (T - 1))                the last prompt position serves
                                                                  the first token of all G,
                             d V N G T                            or, of few, each its own
                                                                  (`log_probs.asked_together`)

with d `hidden_size`, f `intermediate_size`, H `num_heads`, K `num_kv_heads`, D `head_dim`,
V `vocab_size`. A backward pass is twice the forward (the gradient of each product is one product
for either factor: Kaplan et al. 2020, section 2.1) plus what it computes again; that of attention
by blocks always computes its scores again. With adapters
(`lora.py`), the projections and the head are frozen: their products have one gradient, not two.

>>> from ogrpo.policy import DecoderConfig
>>> config = DecoderConfig(
...     architecture="Qwen2ForCausalLM", vocab_size=11, hidden_size=16, intermediate_size=24,
...     num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, rope_theta=1e4, rms_norm_eps=1e-6,
...     tie_embeddings=True, max_positions=64)
>>> update_flops(config, n=2, g=4, p=3, t=6).total
1525248
>>> sample_flops(config, n=2, g=4, p=3, t=6).total
421568
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.log_probs import asked_together

MAX_LOGITS = 1 << 27
"""Logits held at once, the default of `head.token_log_probs`."""


class Redone(NamedTuple):
    """What the backward pass of a layer computes again."""

    attention: bool
    projections: bool


# What a layer keeps: everything, the results of its projections, its input (`decoder.run_layers`).
REMAT: Mapping[str, Redone] = {
    "none": Redone(attention=False, projections=False),
    "products": Redone(attention=True, projections=False),
    "full": Redone(attention=True, projections=True),
}


class Step(NamedTuple):
    """A step of blocked attention (`ogrpo.kernels.attention`): at most so many of each."""

    queries: int
    keys: int


class Adapter(NamedTuple):
    """Low-rank adapters, for their cost."""

    rank: int
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by what they are spent on."""

    projections: int = 0
    attention: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.projections + self.attention + self.head

    def __add__(self, other: "Flops") -> "Flops":
        """Both."""
        return Flops(
            self.projections + other.projections,
            self.attention + other.attention,
            self.head + other.head,
        )

    def __mul__(self, times: int) -> "Flops":
        """So many times."""
        return Flops(self.projections * times, self.attention * times, self.head * times)


@dataclass(frozen=True)
class Parameters:
    """Parameters by component, over all layers."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    head: int
    """0 where the head is tied to the embedding."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.attention + self.mlp + self.norms + self.head


def parameters(config: DecoderConfig) -> Parameters:
    """The parameters of `init_params`, counted."""
    table = config.vocab_size * config.hidden_size
    per_head = 2 * config.head_dim if config.qk_norm else 0
    biases = _queries(config) + 2 * _keys(config) if config.qkv_bias else 0
    layers, width = config.num_layers, config.hidden_size
    return Parameters(
        embedding=table,
        attention=layers * (_attention_macs(config) + biases),
        mlp=layers * _mlp_macs(config),
        norms=layers * (2 * width + per_head) + width,
        head=0 if config.tie_embeddings else table,
    )


def forward_flops(
    config: DecoderConfig,
    *,
    n: int,
    g: int,
    p: int,
    t: int,
    adapter: Adapter | None = None,
    step: Step | None = None,
) -> Flops:
    """One `completion_log_probs` of prompts [n, p] with completions [n, g, t], all of full length.

    With `step` attention walks blocks; padding and shorter completions would leave out more.
    """
    return packed_forward_flops(config, **_sizes(n, g, p, t, step), adapter=adapter)


def packed_forward_flops(
    config: DecoderConfig,
    *,
    tokens: int,
    pairs: int,
    groups: int,
    members: int,
    rest: int,
    adapter: Adapter | None = None,
) -> Flops:
    """One forward pass of a row: `packing.packed_log_probs_and_entropy` of one part.

    Args:
      config: the decoder's shape.
      tokens: in the row, padding included.
      pairs: of a query and a key that attention computes.
      groups: next-token distributions of prompts' last tokens.
      members: completions of each prompt.
      rest: other next-token distributions.
      adapter: what is computed beside the projections.
    """
    alone, together = _rows(groups, members, rest)
    beside = Flops() if adapter is None else _adapters(config, adapter, tokens)
    products = _layers(config, tokens) + beside
    return products + _attention(config, pairs) + _head(config, alone + together)


def recompute_flops(
    config: DecoderConfig,
    *,
    n: int,
    g: int,
    p: int,
    t: int,
    remat: str,
    max_logits: int = MAX_LOGITS,
    step: Step | None = None,
) -> Flops:
    """What a backward pass computes a second time: see `decoder.run_layers`, `head`.

    With `remat` "products" or "full" the attention, with "full" also the projections, except the
    MLP's last, whose result no gradient needs. Attention by blocks computes its scores again, and
    with "full" all of it once more. The logits, where they are taken in chunks because
    there are more than `max_logits` of them.

    Raises:
      ValueError: a `remat` that is no key of `REMAT`.
    """
    return packed_recompute_flops(
        config,
        **_sizes(n, g, p, t, step),
        remat=remat,
        max_logits=max_logits,
        blocked=step is not None,
    )


def packed_recompute_flops(
    config: DecoderConfig,
    *,
    tokens: int,
    pairs: int,
    groups: int,
    members: int,
    rest: int,
    remat: str,
    max_logits: int = MAX_LOGITS,
    blocked: bool = False,
) -> Flops:
    """`recompute_flops` of a row, whose sizes are those of `packed_forward_flops`.

    The logits of first tokens that have a call of their own are never taken in chunks.
    """
    together = _rows(groups, members, rest)[1]
    redone, again = _redone(remat), Flops()
    if redone.projections if blocked else redone.attention:
        again += _attention(config, pairs)
    if blocked:
        again += _scores_alone(_attention(config, pairs))
    if redone.projections:
        macs = _attention_macs(config) + 2 * config.hidden_size * config.intermediate_size
        again += Flops(projections=2 * config.num_layers * macs * tokens)
    return again + _head(config, together if together > _chunk(config, max_logits) else 0)


def update_flops(
    config: DecoderConfig,
    *,
    n: int,
    g: int,
    p: int,
    t: int,
    remat: str = "products",
    microbatches: int = 1,
    adapter: Adapter | None = None,
    step: Step | None = None,
) -> Flops:
    """One update on prompts [n, p] with completions [n, g, t]: 3 forward passes and what is redone.

    Raises:
      ValueError: n is no multiple of `microbatches`.
    """
    if n % microbatches:
        raise ValueError(f"{n} prompts cannot be cut into {microbatches} equal microbatches")
    sizes, blocked = _sizes(n // microbatches, g, p, t, step), step is not None
    each = packed_update_flops(config, **sizes, remat=remat, adapter=adapter, blocked=blocked)
    return each * microbatches


def packed_update_flops(
    config: DecoderConfig,
    *,
    tokens: int,
    pairs: int,
    groups: int,
    members: int,
    rest: int,
    remat: str,
    adapter: Adapter | None = None,
    blocked: bool = False,
) -> Flops:
    """`update_flops` of a row, whose sizes are those of `packed_forward_flops`."""
    row = {"tokens": tokens, "pairs": pairs, "groups": groups, "members": members, "rest": rest}
    forward = packed_forward_flops(config, **row, adapter=None)
    again = packed_recompute_flops(config, **row, remat=remat, blocked=blocked)
    if adapter is None:
        return forward * 3 + again
    if "o_proj" not in adapter.targets and not _redone(remat).projections and not blocked:
        again = replace(again, attention=_scores_alone(again).attention)  # no use of the mix
    backward = Flops(forward.projections, 2 * forward.attention, forward.head)
    beside = _adapters(config, adapter, tokens) * 3
    return forward + backward + again + beside + _adapters_again(config, adapter, tokens, remat)


def _adapters(config: DecoderConfig, adapter: Adapter, tokens: int) -> Flops:
    """What adapters add to a forward pass of so many tokens."""
    width = sum(sum(config.projections[name]) for name in adapter.targets)
    return _beside(config, adapter, tokens, width)


def _adapters_again(config: DecoderConfig, adapter: Adapter, tokens: int, remat: str) -> Flops:
    """B A x, and with the projections also A x; of the MLP's last only A x is needed again."""
    redone, sides = _redone(remat), config.projections
    up = sum(sides[name].outputs for name in adapter.targets if name != "down_proj")
    down = sum(sides[name].inputs for name in adapter.targets)
    width = redone.attention * up + redone.projections * down
    return _beside(config, adapter, tokens, width)


def _beside(config: DecoderConfig, adapter: Adapter, tokens: int, width: int) -> Flops:
    return Flops(projections=2 * config.num_layers * tokens * adapter.rank * width)


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
    """One `sample`: prompts [n, p] prefilled once, then a step per further token of n g rows.

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
    reads = doubling(least_read, t)
    spent = _layers(config, n * p) + _attention(config, n * p * p) + _head(config, n)
    sizes, at = [size for turn in range(halvings) if (size := rows >> turn + 1)], 1
    longest = sorted(lengths, reverse=True)
    for size, fewer in zip([rows, *sizes], [*sizes, 0], strict=True):
        # Step `at` is taken while more than `fewer` rows go on; `at` - 1 slots are written by then.
        for read in reads:
            steps = max(0, min(longest[fewer], read + 2) - at)
            step = _layers(config, size) + _head(config, size)
            spent += (step + _attention(config, size * (p + read + 1))) * steps
            at += steps
    return spent


def doubling(least: int | None, length: int) -> tuple[int, ...]:
    """Numbers of slots to read: from `least`, each twice the one before, to all of `length`."""
    found = []
    while least is not None and least < length:
        found.append(least)
        least *= 2
    return (*found, length)


def weight_bytes(config: DecoderConfig, itemsize: int) -> int:
    """Bytes of the parameters, and of their gradient."""
    return itemsize * parameters(config).total


def activation_bytes(
    config: DecoderConfig, *, n: int, g: int, p: int, t: int, itemsize: int, remat: str
) -> int:
    """Bytes that the layers keep for the backward pass, `remat` being "products" or "full".

    Of each token and layer the input, and with "products" also the results of the projections that
    a gradient needs (q, k, v, o, gate, up).

    Raises:
      ValueError: "none", where it is XLA's choice which element-wise results to keep, or no key of
        `REMAT`.
    """
    redone, width = _redone(remat), config.hidden_size
    if not redone.attention:
        raise ValueError(f"remat {remat!r}: what it keeps is not counted; take products or full")
    if not redone.projections:
        width += _queries(config) + 2 * _keys(config) + width + 2 * config.intermediate_size
    return itemsize * config.num_layers * n * (p + g * t) * width


def logits_bytes(
    config: DecoderConfig, *, n: int, g: int, t: int, max_logits: int = MAX_LOGITS
) -> int:
    """Bytes of the float32 logits alive at once: all rows, or one chunk of them."""
    rows = _rows(n, g, n * g * (t - 1))[1]
    return 4 * config.vocab_size * min(rows, _chunk(config, max_logits))


def score_bytes(config: DecoderConfig, *, n: int, g: int, p: int, t: int) -> int:
    """Bytes of one layer's float32 attention scores, which `attention.attend` holds whole."""
    return 4 * config.num_heads * _scores(n, g, p, t)


def cache_bytes_per_token(config: DecoderConfig, itemsize: int) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return 2 * itemsize * config.num_layers * _keys(config)


def _redone(remat: str) -> Redone:
    if remat not in REMAT:
        raise ValueError(f"remat is {remat!r}: choose one of {', '.join(REMAT)}")
    return REMAT[remat]


def _queries(config: DecoderConfig) -> int:
    return config.num_heads * config.head_dim


def _keys(config: DecoderConfig) -> int:
    return config.num_kv_heads * config.head_dim


def _attention_macs(config: DecoderConfig) -> int:
    """Of the four projections around attention, per token."""
    return 2 * config.hidden_size * (_queries(config) + _keys(config))


def _mlp_macs(config: DecoderConfig) -> int:
    return 3 * config.hidden_size * config.intermediate_size


def _layers(config: DecoderConfig, tokens: int) -> Flops:
    """All projections of `tokens` tokens."""
    macs = _attention_macs(config) + _mlp_macs(config)
    return Flops(projections=2 * config.num_layers * macs * tokens)


def _scores(n: int, g: int, p: int, t: int) -> int:
    """Pairs of a query and a key, per head: of prompts, and of completions with prompt and own."""
    return n * (p * p + g * t * (p + t))


def _walked_pairs(n: int, g: int, p: int, t: int, step: Step) -> int:
    """Pairs of a query and a key in the blocks that `kernels.attention.blocked` walks."""
    own = [(queries, _walked(seen, t, step)) for queries, seen in _tiles(t, step)]
    prompts = sum(queries * _walked(seen, p, step) for queries, seen in _tiles(p, step))
    return n * (prompts + g * sum(size * (_walked(p, p, step) + keys) for size, keys in own))


def _tiles(length: int, step: Step) -> list[tuple[int, int]]:
    """Queries of each tile of a causal row, padding included, and the most keys that one sees."""
    count = -(-length // step.queries)
    size = -(-length // count)
    return [(size, min((i + 1) * size, length)) for i in range(count)]


def _walked(seen: int, size: int, step: Step) -> int:
    """Keys of the blocks that hold the first `seen` of `size`."""
    width = -(-size // -(-size // step.keys))
    return -(-seen // width) * width


def _sizes(n: int, g: int, p: int, t: int, step: Step | None) -> dict[str, int]:
    """A padded batch as the row that it is, for the functions of rows."""
    return {
        "tokens": n * (p + g * t),
        "pairs": _scores(n, g, p, t) if step is None else _walked_pairs(n, g, p, t, step),
        "groups": n,
        "members": g,
        "rest": n * g * (t - 1),
    }


def _attention(config: DecoderConfig, pairs: int) -> Flops:
    """Scores and mix of so many pairs of a query and a key, in every head and layer."""
    return Flops(attention=4 * config.num_layers * _queries(config) * pairs)


def _scores_alone(whole: Flops) -> Flops:
    """Of attention's two products the first."""
    return Flops(attention=whole.attention // 2)


def _rows(groups: int, members: int, rest: int) -> tuple[int, int]:
    """Rows of the head's call for first tokens, and of the other call: see `log_probs.ask`."""
    if asked_together(groups, members):
        return 0, groups * members + rest
    return groups, rest


def _head(config: DecoderConfig, rows: int) -> Flops:
    return Flops(head=2 * config.hidden_size * config.vocab_size * rows)


def _chunk(config: DecoderConfig, max_logits: int) -> int:
    """Rows of logits taken at once: `head.token_log_probs`."""
    return max(1, max_logits // config.vocab_size)
