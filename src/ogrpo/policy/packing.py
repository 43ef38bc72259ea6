"""Log-probabilities of completions without their padding: the tokens of a batch as one flat row.

    row = [tokens that predict a completion's next | ends of completions, prompts]      # [M]
    attention: row -> prompts [A, P] and blocks of queries [B, b] -> row

Norms, projections, MLP and head see the row and nothing else. Attention alone needs to know which
token is whose. A completion's queries are cut into blocks of b, of which a short completion has
few; a block sees its group's prompt and its completion, so that what attention costs follows the
tokens too, though not quite: a block's keys are padded to the longest prompt and completion.

Going into that layout and back are two gathers, each the transpose of the other.

On a mesh, W parts are computed together, [W, M], one on each device that a batch is cut over: every
part is laid out for itself, so that no device needs another's tokens.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ogrpo.batch import Packing, PolicyOutput
from ogrpo.policy.attention import AttentionFn, KeySegment, attend, causal
from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import (
    KeepFn,
    MixFn,
    Params,
    SpreadFn,
    head_weight,
    keep_products,
    run_layers,
)
from ogrpo.policy.log_probs import (
    HeadFn,
    TokenQueries,
    both_queries,
    check_positions,
    token_log_probs,
    with_top,
)


def packed_log_probs_and_entropy(
    params: Params,
    config: DecoderConfig,
    packing: Packing[jax.Array],
    temperature: jax.Array | float,
    top_ids: jax.Array | None = None,
    *,
    attention_fn: AttentionFn = attend,
    log_probs_fn: HeadFn = token_log_probs,
    keep_fn: KeepFn = keep_products,
    spread_fn: SpreadFn = lambda x: x,
    together: int = 1,
) -> PolicyOutput[jax.Array]:
    """Returns `completion_log_probs_and_entropy` of a packed batch: the same without the padding.

    Args: as there, but for
      packing: the batch's tokens and where they stand (`ogrpo.data.packing` makes it).
      top_ids: the batch's own, int32 [N, G, T, K].
      spread_fn: pins arrays of W parts, [W, ...], to a mesh of devices.
      together: W, parts computed at a time; the others follow one after the other.

    Returns:
      Log-probs and entropy, float32 [N, G, T'], and log-probs of `top_ids` [N, G, T', K]: 0 on
      padding and on groups left out.

    Raises:
      ValueError: P + T beyond the model's positions, or parts that are no multiple of W.
    """
    check_positions(config, packing.prompt_slots.shape[2], packing.completion_slots.shape[2])
    count = packing.token_ids.shape[0]
    if count % together:
        raise ValueError(f"{count} parts cannot be computed {together} at a time: arrange them so")
    temperature = jnp.asarray(temperature, jnp.float32)

    def compute(inputs: tuple[Packing[jax.Array], Any]) -> PolicyOutput[jax.Array]:
        packing, tops = jax.tree.map(spread_fn, inputs)
        rows, answers = packing.targets.shape[1], packing.answers
        hidden, _ = run_layers(
            params,
            config,
            packing.token_ids,
            packing.positions,
            _mix(packing, attention_fn),
            keep_fn=keep_fn,
            spread_fn=spread_fn,
        )
        last = _each(lambda row, places: row[places], hidden, packing.last)
        of_firsts, of_targets = None, None
        if tops is not None:
            flat = _each(_tops_at_queries, packing, tops)
            of_firsts, of_targets = jnp.split(flat, [flat.shape[1] - rows], axis=1)
            of_firsts = of_firsts.reshape(*packing.firsts.shape, -1)
        queries = (
            TokenQueries(hidden=last, token_ids=with_top(packing.firsts, of_firsts)),
            TokenQueries(
                hidden=hidden[:, :rows], token_ids=with_top(packing.targets, of_targets)[:, :, None]
            ),
        )
        if len(packing.token_ids) == 1:
            queries, answers = jax.tree.map(lambda x: x[0], (queries, answers))
        first, rest = both_queries(log_probs_fn, head_weight(params), temperature, *queries)

        def answer(*parts: jax.Array) -> jax.Array:
            alone = answers.ndim == 3
            joined = jnp.concatenate(parts, axis=0 if alone else 1)
            if alone:
                return _read(joined, answers)
            read = jax.vmap(_read)(joined, answers)
            return read.reshape(-1, *read.shape[2:])

        return jax.tree.map(answer, first, rest)

    tops = top_ids
    if tops is not None:
        if packing.groups is not None:
            tops = jnp.take(tops, packing.groups.ravel(), axis=0, mode="clip")
        tops = tops.reshape(*packing.answers.shape, -1)
    if count == together:
        return compute((packing, tops))
    turns = jax.tree.map(lambda x: x.reshape(-1, together, *x.shape[1:]), (packing, tops))
    out = jax.lax.map(compute, turns)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out)


def _tops_at_queries(packing: Packing[jax.Array], tops: jax.Array) -> jax.Array:
    """Lays recorded tokens [N/K, G, T', K] out as the queries are: firsts, then targets."""
    size = packing.firsts.size + packing.targets.size
    empty = jnp.zeros((size, tops.shape[-1]), tops.dtype)
    return empty.at[packing.answers].set(tops, mode="drop")


def _each(fn: Callable[..., Any], *arrays: Any) -> Any:
    """Applies a function of one part to each; one alone needs no batched gathers."""
    if jax.tree.leaves(arrays)[0].shape[0] > 1:
        return jax.vmap(fn)(*arrays)
    alone = fn(*jax.tree.map(lambda x: x[0], arrays))
    return jax.tree.map(lambda x: x[None], alone)


def _mix(packing: Packing[jax.Array], attention_fn: AttentionFn) -> MixFn:
    """Returns attention of the parts' rows: a prompt to itself, a block to prompt and completion.

    Prompts and blocks of all parts are computed as if they were of one.
    """
    prompts, of_prompt, of_completion = _each(_seen, packing)
    owners = _each(lambda part: part.block_owners, packing)
    completions, members = packing.completion_slots.shape[1], packing.firsts.shape[2]
    query_places = packing.prompt_slots, packing.block_slots, packing.query_slots
    key_places = packing.prompt_slots, packing.completion_slots, packing.key_slots

    def whole(x: jax.Array) -> jax.Array:
        return x.reshape(-1, *x.shape[2:])

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, _context: Any) -> jax.Array:
        q, block_q = _each(_unpack, queries, *query_places)
        (k, late_k), (v, late_v) = (_each(_unpack, x, *key_places) for x in (keys, values))
        at = whole(owners + completions * jnp.arange(len(owners), dtype=owners.dtype)[:, None])
        prompt = KeySegment(whole(k), whole(v), whole(prompts))
        shared = KeySegment(whole(k), whole(v), whole(of_prompt), at // members)
        late = KeySegment(whole(late_k), whole(late_v), whole(of_completion), at)
        mixed = attention_fn(whole(q)[:, None], [prompt])[:, 0]
        blocks = attention_fn(whole(block_q)[:, None], [shared, late])[:, 0]
        return _each(_pack, packing, mixed.reshape(q.shape), blocks.reshape(block_q.shape))

    return mix


def _seen(packing: Packing[jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Counts the keys that prompts see of themselves, and blocks of prompts and of completions."""
    nowhere = packing.token_ids.shape[0]
    prompt, block = packing.prompt_slots < nowhere, packing.block_slots < nowhere
    groups = packing.block_owners // packing.firsts.shape[1]
    lengths = jnp.sum(prompt, axis=1, dtype=jnp.int32)
    place = packing.block_starts[:, None] + jnp.arange(1, block.shape[1] + 1, dtype=jnp.int32)[None]
    of_prompt = jnp.where(block, lengths[groups][:, None], 0)
    return causal(prompt)[:, None], of_prompt[:, None], jnp.where(block, place, 0)[:, None]


def _unpack(
    row: jax.Array, first: jax.Array, second: jax.Array, back: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Lays a row [M, ...] out at the slots [A, P] and [B, b]: [A, P, ...] and [B, b, ...]."""
    flat = move(row, jnp.concatenate([first.ravel(), second.ravel()]), back)
    one, other = jnp.split(flat, [first.size])
    inner = row.shape[1:]
    return one.reshape(*first.shape, *inner), other.reshape(*second.shape, *inner)


def _pack(packing: Packing[jax.Array], prompts: jax.Array, blocks: jax.Array) -> jax.Array:
    """Inverts `_unpack` of queries."""
    flat = [part.reshape(-1, *part.shape[2:]) for part in (prompts, blocks)]
    there = jnp.concatenate([packing.prompt_slots.ravel(), packing.block_slots.ravel()])
    return move(jnp.concatenate(flat), packing.query_slots, there)


@jax.custom_vjp
def move(x: jax.Array, there: jax.Array, _back: jax.Array) -> jax.Array:
    """Returns y[i] = x[there[i]], and 0 where that is beyond the end of x.

    Its transpose is the same with `there` and `_back` exchanged: _back[there[i]] = i wherever
    there[i] is within x, and every other entry of `_back` is beyond the end of y. XLA would not
    know and scatter, which is slow on a CPU.

    Args:
      x: [M, ...].
      there: int [L].
      _back: int [M].

    Returns:
      [L, ...].
    """
    return _read(x, there)


def _read(x: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.take(x, places, axis=0, mode="fill", fill_value=0)


def _forward(
    x: jax.Array, there: jax.Array, back: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return move(x, there, back), (there, back)


def _backward(
    saved: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None, None]:
    there, back = saved
    return move(cotangent, back, there), None, None


move.defvjp(_forward, _backward)
