"""The embedded sampler: one compiled program, each prompt prefilled once for its G completions.

prefill prompts [N, P] -> keys and values of P slots, and the first token's distribution
while any completion is unfinished and tokens are left:
    the newest token's keys and values go to the cache, [N, G] times T slots
    one step over [N, G] tokens; if asked for, it reads at most twice the slots that are written
    if asked for: once half of the rows hold all that is unfinished, go on with those alone

The cache holds keys and values [..., K, D, S], for S slots of a prompt's tokens or a completion's:
a query's products with many keys read them in that order, where XLA's CPU backend would otherwise
transpose the whole cache at every step.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy.attention import AttentionFn, KeySegment, attend
from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import MixFn, Params, head_weight, product, run_layers
from ogrpo.policy.flops import doubling
from ogrpo.policy.log_probs import check_positions, last_valid, log_softmax, run_prompt

Cache = Any
"""Keys and values [L, ..., K, D, S], or a list of L such pairs without the first axis."""
Pairs = Any
"""Keys and values [L, ..., K, D] of one token a row, or a list of L pairs, as of `run_layers`."""


class Sampled(NamedTuple):
    """Completions padded on the right with token 0."""

    token_ids: jax.Array
    """Int32 [N, G, T]."""
    log_probs: jax.Array
    """Float32 [N, G, T]: log-probs of the tokens under the distribution that they were drawn from,
    softmax(z / temperature) or what `truncated` leaves of it."""
    mask: jax.Array
    """Bool [N, G, T]: True on tokens, the end-of-sequence token included."""
    finished: jax.Array
    """Bool [N, G]: True where the end-of-sequence token was drawn."""
    top_ids: jax.Array | None = None
    """Int32 [N, G, T, K]: the likeliest tokens that could be drawn, likeliest first, -1 for none;
    None unless they are recorded."""
    top_log_probs: jax.Array | None = None
    """Float32 [N, G, T, K]: their log-probs, -inf for none."""


class Truncation(NamedTuple):
    """The tokens that are left out before one is drawn, and how many of the rest are recorded."""

    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    record: int = 0

    @property
    def truncates(self) -> bool:
        """Whether tokens are left out."""
        return self[:3] != (0.0, 0, 1.0)


class _Draw(NamedTuple):
    """The settings that turn logits into a token; every field is traced."""

    temperature: jax.Array
    greedy: jax.Array
    eos_id: jax.Array


class _Drawn(NamedTuple):
    """A grid [N, G] of completions so far; token arrays are step-major."""

    token_ids: jax.Array
    """Int32 [T, N, G]."""
    log_probs: jax.Array
    """Float32 [T, N, G]."""
    lengths: jax.Array
    """Int32 [N, G]: tokens drawn, the end-of-sequence token included."""
    done: jax.Array
    """Bool [N, G]."""
    top_ids: jax.Array | None
    """Int32 [T, K, N, G]."""
    top_log_probs: jax.Array | None
    """Float32 [T, K, N, G]."""


class _State(NamedTuple):
    """The loop's state before token `step` is drawn."""

    step: jax.Array
    drawn: _Drawn
    cache: Cache
    """Shape [L, N, G, K, D, T]."""
    fresh: Pairs
    """Those of the last token but one, not yet in the cache. The next step writes them before it
    reads, which happens in place; for a write after reads XLA's CPU backend copies the cache."""


class _Inputs(NamedTuple):
    """The constants of the loop."""

    prompt_mask: jax.Array
    """Bool [N, P]."""
    prompt_cache: Cache
    """Shape [L, N, K, D, P]."""
    uniforms: jax.Array
    """Float32 [T, 2, N, G]."""


def sample(
    params: Params,
    config: DecoderConfig,
    prompt_ids: jax.Array,
    prompt_mask: jax.Array,
    key: jax.Array,
    *,
    temperature: float,
    greedy: bool,
    group_size: int,
    max_tokens: int,
    eos_id: int,
    halvings: int = 0,
    least_read: int | None = None,
    attention_fn: AttentionFn = attend,
    **truncation: Any,
) -> Sampled:
    """Draws G completions of each prompt from softmax(z / temperature), with their log-probs.

    With a truncation it draws from what `truncated` leaves of that distribution, and the log-probs
    are those of what is left.

    Completion g of prompt n uses the key folded with n and then g, so that no other row changes it.
    `temperature`, `greedy` and `eos_id` may change without compiling anew; `group_size` and
    `max_tokens` may not.

    Args:
      params: as from `init_params`.
      config: their shape.
      prompt_ids: int32 [N, P], padded on the right.
      prompt_mask: bool [N, P], True on tokens; each row has at least one.
      key: a `jax.random.key`.
      temperature: > 0. With `greedy` it only scales the reported log-probs.
      greedy: take the most likely token (the lowest id among equals) instead of drawing one.
      group_size: completions per prompt, G.
      max_tokens: tokens per completion at most, T.
      eos_id: the token that ends a completion.
      halvings: how often the batch may be halved as its rows finish. Each compiles the loop once
        more, and at a halving a part of the cache is held twice.
      least_read: slots of the cache that a step reads at least; from there on what it reads
        doubles as tokens are written. None: every step reads all T. Each length compiles
        attention once more.
      attention_fn: attention over segments.
      **truncation: fields of `Truncation`; other ones compile anew.

    Returns:
      The completions; their log-probs are those of `completion_log_probs` at this temperature,
      over the tokens that were left.

    Raises:
      ValueError: temperature <= 0, group_size, max_tokens or least_read < 1, an eos_id outside the
        vocabulary, a prompt without tokens, or P + T beyond the model's positions.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature must be > 0, got {temperature}; for the most likely token use greedy=True"
        )
    for name, value in (("group_size", group_size), ("least_read", least_read)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 <= eos_id < config.vocab_size:
        raise ValueError(f"eos_id {eos_id} is outside the vocabulary of {config.vocab_size}")
    if prompt_ids.ndim != 2 or prompt_mask.shape != prompt_ids.shape:
        raise ValueError(
            "prompts are [N, P] with a mask of the same shape;"
            f" got {prompt_ids.shape} and {prompt_mask.shape}"
        )
    if getattr(prompt_mask, "is_fully_addressable", True):  # else who cut them has checked
        empty = np.flatnonzero(~np.asarray(prompt_mask).any(axis=1)).tolist()
        if empty:
            raise ValueError(f"prompts {empty} have no token: their mask is False throughout")
    check_positions(config, prompt_ids.shape[1], max_tokens)
    rows = prompt_ids.shape[0] * group_size
    draw = _Draw(jnp.float32(temperature), jnp.asarray(greedy), jnp.int32(eos_id))
    return _sample(
        params,
        prompt_ids,
        prompt_mask,
        key,
        draw,
        config=config,
        group_size=group_size,
        lengths=doubling(least_read, max_tokens),
        sizes=tuple(size for turn in range(halvings) if (size := rows >> turn + 1)),
        attention_fn=attention_fn,
        truncation=Truncation(**truncation),
    )


@partial(
    jax.jit,
    static_argnames=("attention_fn", "config", "group_size", "lengths", "sizes", "truncation"),
)
def _sample(
    params: Params,
    prompt_ids: jax.Array,
    prompt_mask: jax.Array,
    key: jax.Array,
    draw: _Draw,
    *,
    config: DecoderConfig,
    group_size: int,
    lengths: tuple[int, ...],
    sizes: tuple[int, ...],
    attention_fn: AttentionFn,
    truncation: Truncation,
) -> Sampled:
    hidden, pairs = run_prompt(params, config, prompt_ids, prompt_mask, attention_fn=attention_fn)
    shape = (prompt_ids.shape[0], group_size)
    prompt_cache = jax.tree.map(lambda x: jnp.moveaxis(x, -3, -1), pairs)
    inputs = _Inputs(prompt_mask, prompt_cache, _uniforms(key, *shape, lengths[-1]))
    scores = product(last_valid(hidden, prompt_mask), head_weight(params), jnp.float32)
    scores = jnp.broadcast_to(scores[:, None], (*shape, config.vocab_size))

    def step(inputs: _Inputs, state: _State) -> _State:
        # Token `step - 1` goes in, the one before it joins the cache, token `step` comes out.
        past, grid = state.step - 1, state.drawn.done.shape
        slot = jnp.maximum(past - 1, 0)
        write = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=-1)
        cache = jax.tree.map(write, state.cache, state.fresh)
        if isinstance(cache, list):
            contexts = list(zip(inputs.prompt_cache, cache, strict=True))
        else:
            contexts = inputs.prompt_cache, cache
        starts = jnp.sum(inputs.prompt_mask, axis=1, dtype=jnp.int32)
        hidden, fresh = run_layers(
            params,
            config,
            state.drawn.token_ids[past],
            jnp.broadcast_to((starts + past)[:, None], grid),
            _mix_step(inputs.prompt_mask, past, lengths, attention_fn),
            contexts=contexts,
        )
        scores = product(hidden.reshape(-1, hidden.shape[-1]), head_weight(params), jnp.float32)
        state = state._replace(cache=cache, fresh=fresh)
        return _emit(state, scores.reshape(*grid, -1), inputs.uniforms, draw, truncation)

    length, recorded = lengths[-1], min(truncation.record, config.vocab_size)
    top = (length, recorded, *shape)
    nothing = _Drawn(
        token_ids=jnp.zeros((length, *shape), jnp.int32),
        log_probs=jnp.zeros((length, *shape), jnp.float32),
        lengths=jnp.zeros(shape, jnp.int32),
        done=jnp.zeros(shape, bool),
        top_ids=jnp.full(top, -1, jnp.int32) if recorded else None,
        top_log_probs=jnp.full(top, -jnp.inf, jnp.float32) if recorded else None,
    )

    def empty(prompt: jax.Array) -> jax.Array:
        """Returns slots [N, G, K, D, T] beside those of prompts [N, K, D, P]."""
        slots = (*prompt.shape[:-3], group_size, *prompt.shape[-3:-1], length)
        return jnp.zeros(slots, prompt.dtype)

    cache = jax.tree.map(empty, prompt_cache)
    fresh = jax.tree.map(lambda x: jnp.zeros_like(x[..., 0]), cache)
    first = _State(jnp.int32(0), nothing, cache, fresh)
    start = _emit(first, scores, inputs.uniforms, draw, truncation)
    drawn = _decode(step, inputs, start, sizes)
    token_ids = jnp.moveaxis(drawn.token_ids, 0, -1)
    steps = jnp.arange(length)[None, None]
    by_row = partial(jax.tree.map, lambda top: jnp.moveaxis(top, (0, 1), (2, 3)))
    return Sampled(
        token_ids=token_ids,
        log_probs=jnp.moveaxis(drawn.log_probs, 0, -1),
        mask=steps < drawn.lengths[..., None],
        finished=drawn.done,
        top_ids=by_row(drawn.top_ids),
        top_log_probs=by_row(drawn.top_log_probs),
    )


def _mix_step(
    prompt_mask: jax.Array, past: jax.Array, lengths: tuple[int, ...], attention_fn: AttentionFn
) -> MixFn:
    """Returns attention of one token per completion: to prompt, `past` cached tokens and itself.

    The number of slots that it reads is the least of `lengths` that holds what is written.
    """
    prompt_seen = jnp.sum(prompt_mask, axis=1, dtype=jnp.int32)[:, None, None]
    seen, itself = past[None, None, None], jnp.ones((1, 1, 1), jnp.int32)
    which = sum((past > length).astype(jnp.int32) for length in lengths[:-1])

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, context: Any) -> jax.Array:
        prompt, cache = context
        # With the barrier the prompt's cache stays as it lies: else the compiler turns it around
        # before the loop, and the products turn it back at every step.
        prompt, queries = jax.lax.optimization_barrier((prompt, queries))
        by_token = partial(jnp.moveaxis, source=-1, destination=-3)  # [..., S, K, D]
        prompt_keys, prompt_values = map(by_token, prompt)

        def over(length: int) -> jax.Array:
            past_keys, past_values = (by_token(x[..., :length]) for x in cache)
            segments = [
                KeySegment(prompt_keys, prompt_values, prompt_seen),
                KeySegment(past_keys, past_values, seen),
                KeySegment(keys[:, :, None], values[:, :, None], itself),
            ]
            return attention_fn(queries[:, :, None], segments)[:, :, 0]

        return jax.lax.switch(which, [partial(over, length) for length in lengths])

    return mix


def _decode(
    step: Callable[[_Inputs, _State], _State],
    inputs: _Inputs,
    state: _State,
    sizes: tuple[int, ...],
) -> _Drawn:
    """Steps while a row is unfinished; once `sizes[0]` rows hold all of those, on them alone."""
    fewer = sizes[0] if sizes else 0

    def unfinished(state: _State) -> jax.Array:
        return (state.step < len(state.drawn.token_ids)) & (jnp.sum(~state.drawn.done) > fewer)

    state = jax.lax.while_loop(unfinished, partial(step, inputs), state)
    if not sizes:
        return state.drawn
    rows = jnp.argsort(state.drawn.done.ravel(), stable=True)[:fewer]
    rest = _decode(step, *_narrow(inputs, state, rows), sizes[1:])

    def put_back(whole: jax.Array, part: jax.Array) -> jax.Array:
        flat = whole.reshape(*whole.shape[:-2], -1)
        return flat.at[..., rows].set(part[..., 0]).reshape(whole.shape)

    return jax.tree.map(put_back, state.drawn, rest)


def _narrow(inputs: _Inputs, state: _State, rows: jax.Array) -> tuple[_Inputs, _State]:
    """Gathers rows of a grid [N, G] as a grid [R, 1], each with a copy of its prompt's cache."""
    prompts = rows // state.drawn.done.shape[1]

    def gather(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-2], -1)[..., rows][..., None]

    def gather_cache(inner: int, x: jax.Array) -> jax.Array:
        flat = x.reshape(*x.shape[: -inner - 2], -1, *x.shape[x.ndim - inner :])
        return jnp.expand_dims(jnp.take(flat, rows, axis=-inner - 1), -inner - 1)

    narrow = _Inputs(
        prompt_mask=inputs.prompt_mask[prompts],
        prompt_cache=jax.tree.map(lambda x: jnp.take(x, prompts, axis=-4), inputs.prompt_cache),
        uniforms=gather(inputs.uniforms),
    )
    return narrow, _State(
        state.step,
        jax.tree.map(gather, state.drawn),
        cache=jax.tree.map(partial(gather_cache, 3), state.cache),
        fresh=jax.tree.map(partial(gather_cache, 2), state.fresh),
    )


def _uniforms(key: jax.Array, n: int, group: int, length: int) -> jax.Array:
    """Draws uniforms [T, 2, N, G] on [0, 1), of row (n, g) by the key folded with n, then g."""

    def row(prompt: jax.Array, completion: jax.Array) -> jax.Array:
        row_key = jax.random.fold_in(jax.random.fold_in(key, prompt), completion)
        return jax.random.uniform(row_key, (length, 2))

    rows = jax.vmap(jax.vmap(row, (None, 0)), (0, None))(jnp.arange(n), jnp.arange(group))
    return jnp.moveaxis(rows, (2, 3), (0, 1))


def _emit(
    state: _State, scores: jax.Array, uniforms: jax.Array, draw: _Draw, truncation: Truncation
) -> _State:
    """Draws token `step` from logits [N, G, V] for the rows that are not done."""
    step, so_far = state.step, state.drawn
    log_probs = log_softmax(scores, draw.temperature)
    ids = None
    if truncation.truncates:  # the law is over places in `ids`, likeliest first
        ids, log_probs = truncated(log_probs, truncation)
    place = jax.lax.cond(
        draw.greedy,
        lambda: jnp.argmax(scores if ids is None else log_probs, axis=-1).astype(jnp.int32),
        lambda: inverse_cdf(jnp.exp(log_probs), jnp.moveaxis(uniforms[step], 0, -1)),
    )
    place = jnp.where(so_far.done, 0, place)
    picked = jnp.take_along_axis(log_probs, place[..., None], axis=-1)[..., 0]
    token = place
    if ids is not None:
        token = jnp.take_along_axis(ids, place[..., None], axis=-1)[..., 0]
        token = jnp.where(so_far.done, 0, token)
    top_ids, top_log_probs = so_far.top_ids, so_far.top_log_probs
    if top_ids is not None and top_log_probs is not None:
        top, places = jax.lax.top_k(log_probs, min(top_ids.shape[1], log_probs.shape[-1]))
        best = places if ids is None else jnp.take_along_axis(ids, places, axis=-1)
        best = jnp.where(so_far.done[..., None] | jnp.isneginf(top), -1, best)
        width = top.shape[-1]
        top_ids = top_ids.at[step, :width].set(jnp.moveaxis(best, -1, 0))
        top = jnp.where(best < 0, -jnp.inf, top)
        top_log_probs = top_log_probs.at[step, :width].set(jnp.moveaxis(top, -1, 0))
    drawn = _Drawn(
        token_ids=so_far.token_ids.at[step].set(token),
        log_probs=so_far.log_probs.at[step].set(jnp.where(so_far.done, 0.0, picked)),
        lengths=so_far.lengths + (~so_far.done).astype(jnp.int32),
        done=so_far.done | (token == draw.eos_id),
        top_ids=top_ids,
        top_log_probs=top_log_probs,
    )
    return state._replace(step=step + 1, drawn=drawn)


def truncated(log_probs: jax.Array, truncation: Truncation) -> tuple[jax.Array, jax.Array]:
    """Returns what is left of distributions: ids int32 [..., K], likeliest first, and log-probs.

    First min_p leaves the tokens at least min_p times as likely as the likeliest, then top_k the k
    likeliest, then top_p the fewest likeliest whose share of what is left is at least top_p: vLLM's
    order. Of equal ones at the edge of top_k and top_p, those with the lowest ids are left; vLLM
    and transformers keep all at the edge of top_k. What remains is normalised anew.

    Args:
      log_probs: float32 [..., V], log softmax(z / temperature).
      truncation: K = min(top_k, V), or V without top_k.

    Returns:
      The K tokens, and their log-probs, -inf for those that are left out.
    """
    size = log_probs.shape[-1]
    values, ids = jax.lax.top_k(log_probs, min(truncation.top_k or size, size))
    left = jnp.ones(values.shape, bool)
    if truncation.min_p > 0:
        left = values >= values[..., :1] + math.log(truncation.min_p)
    if truncation.top_p < 1:
        share = jax.nn.softmax(jnp.where(left, values, -jnp.inf), axis=-1)
        left &= jnp.cumsum(share, axis=-1) - share < truncation.top_p
    values = jnp.where(left, values, -jnp.inf)
    return ids.astype(jnp.int32), values - jax.nn.logsumexp(values, axis=-1, keepdims=True)


def inverse_cdf(probabilities: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Draws from each distribution: first a block of about sqrt(V) indices, then one within it.

    In two stages because a float32 sum over a whole vocabulary of 150,000 rounds by as much as its
    rarest tokens weigh, and because two short sums are faster than a long one.

    Args:
      probabilities: float32 [..., V], non-negative, summing to about 1.
      uniforms: float32 [..., 2], on [0, 1), one for each stage.

    Returns:
      int32 [...]; an index of probability 0 is never drawn.
    """
    size = probabilities.shape[-1]
    width = math.isqrt(size - 1) + 1
    lead = probabilities.shape[:-1]
    padding = [*((0, 0) for _ in lead), (0, -size % width)]
    blocks = jnp.pad(probabilities, padding).reshape(*lead, -1, width)
    block = _first_beyond(jnp.sum(blocks, axis=-1), uniforms[..., 0])
    inside = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return block * width + _first_beyond(inside, uniforms[..., 1])


def _first_beyond(weights: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Returns the first index whose cumulative weight exceeds u times the total."""
    # Partial sums differ in their last bits: those of an index without weight are left out.
    cumulative = jnp.where(weights > 0, jnp.cumsum(weights, axis=-1), 0)
    threshold = uniforms[..., None] * jnp.max(cumulative, axis=-1, keepdims=True)
    return jnp.argmax(cumulative > threshold, axis=-1).astype(jnp.int32)
