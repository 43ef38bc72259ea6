"""Log-probabilities of completions, each prompt computed once for its whole group.

    prompts [N, P], completions [N, G, T]  ->  tokens [N, P + G*T]  ->  layers  ->  hidden
    the last prompt position predicts token 0 of every completion; position t predicts token t + 1

Norms, projections and MLP see one flat row of tokens; only attention knows the group: a prompt
attends to itself, and a completion to its prompt's keys, which are stored once, and to itself. The
widest part of the computation is the last: log-probs of tokens from hidden states.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.batch import Batch, PolicyOutput
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
from ogrpo.policy.params import split_value_head, values_of

HeadFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], PolicyOutput[jax.Array]]
"""`(hidden, embedding, token_ids, temperature) -> log-probs and entropy`: of [M, d], [V, d], [M, A]
and a scalar, [M, A] and [M]."""
MAX_LOGITS = 1 << 27
"""Logits that `token_log_probs` holds at once: 512 MiB of float32."""
_FEW_ROWS = 64


def logits(hidden: jax.Array, embedding: jax.Array) -> jax.Array:
    """Returns z = E h in float32, float64 of float64: [M, d] and [V, d] to [M, V]."""
    wide = jnp.float64 if hidden.dtype == jnp.float64 else jnp.float32
    return jnp.einsum("md,vd->mv", hidden, embedding, preferred_element_type=wide)


def log_softmax(scores: jax.Array, temperature: jax.Array) -> jax.Array:
    """Returns log pi = log softmax(z / temperature) over the last axis, for z [..., V]."""
    return jax.nn.log_softmax(scores / temperature, axis=-1)


def token_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    max_logits: int = MAX_LOGITS,
) -> PolicyOutput[jax.Array]:
    """Returns log-probs of A tokens under each of M next-token distributions, and their entropy.

    log_probs[m, a] = log_softmax(E h_m / temperature)[token_ids[m, a]], entropy[m] = -sum p log p,
    in float32. Above `max_logits` logits the M rows are taken in chunks that fit, each recomputed
    in the backward pass, so that [M, V] is never held whole.

    Args:
      hidden: [M, d].
      embedding: [V, d].
      token_ids: int [M, A].
      temperature: float32 scalar, > 0.
      max_logits: the most float32 logits alive at once.

    Returns:
      float32 [M, A] and [M].
    """
    rows = max(1, max_logits // embedding.shape[0])
    if hidden.shape[0] <= rows:
        return _row_log_probs(hidden, embedding, token_ids, temperature)

    @jax.checkpoint
    def row(inputs: tuple[jax.Array, jax.Array]) -> PolicyOutput[jax.Array]:
        state, ids = inputs
        out = _row_log_probs(state[None], embedding, ids[None], temperature)
        return PolicyOutput(log_probs=out.log_probs[0], entropy=out.entropy[0])

    return jax.lax.map(row, (hidden, token_ids), batch_size=rows)


def _row_log_probs(
    hidden: jax.Array, embedding: jax.Array, token_ids: jax.Array, temperature: jax.Array
) -> PolicyOutput[jax.Array]:
    log_probs = log_softmax(logits(hidden, embedding), temperature)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    picked = jnp.take_along_axis(log_probs, token_ids, axis=-1)
    return PolicyOutput(log_probs=picked, entropy=entropy)


def completion_log_probs(
    params: Params,
    config: DecoderConfig,
    batch: Batch[jax.Array],
    temperature: jax.Array | float,
    **options: Any,
) -> jax.Array:
    """Returns log pi(completion token | prompt, earlier tokens), float32 [N, G, T], 0 on padding.

    That is log_softmax(z / temperature)[token]. Arguments, options and errors are those of
    `completion_log_probs_and_entropy`.
    """
    out = completion_log_probs_and_entropy(params, config, batch, temperature, **options)
    return out.log_probs


def completion_log_probs_and_entropy(
    params: Params,
    config: DecoderConfig,
    batch: Batch[jax.Array],
    temperature: jax.Array | float,
    *,
    attention_fn: AttentionFn = attend,
    log_probs_fn: HeadFn = token_log_probs,
    keep_fn: KeepFn = keep_products,
    spread_fn: SpreadFn = lambda x: x,
) -> PolicyOutput[jax.Array]:
    """Returns log-probs of completions' tokens and the entropy of the policy at each.

    Args:
      params: as from `init_params`; their dtype is that of the computation (softmaxes and
        log-probs are float32 in any case).
      config: their shape; static.
      batch: prompts and completions; its tokens and their masks are read, `top_ids` where there
        are any, and nothing else.
      temperature: > 0; may be traced.
      attention_fn: attention over segments.
      log_probs_fn: hidden states to log-probs.
      keep_fn: what layers keep for the backward pass (see `run_layers`).
      spread_fn: pins hidden states to a mesh of devices (see `run_layers`).

    Returns:
      Log-probs and entropy, float32 [N, G, T], both 0 on padding; values too, if there is a value
      head among the parameters (`params.with_value_head`), and log-probs [N, G, T, K] of `top_ids`,
      of token 0 where these are -1.

    Raises:
      ValueError: shapes that do not agree, or P + T beyond the model's positions.
    """
    _check_batch(config, batch)
    n, group, length = batch.completion_ids.shape
    params, value_head = split_value_head(params)
    prompt = jnp.broadcast_to(jnp.arange(batch.prompt_ids.shape[1])[None], batch.prompt_ids.shape)
    starts = jnp.sum(batch.prompt_mask, axis=1, dtype=jnp.int32)
    place = jnp.tile(jnp.arange(length), group)[None]
    hidden, _ = run_layers(
        params,
        config,
        jnp.concatenate([batch.prompt_ids, batch.completion_ids.reshape(n, -1)], axis=1),
        jnp.concatenate([prompt, starts[:, None] + place], axis=1),
        _mix_groups(batch, attention_fn),
        keep_fn=keep_fn,
        spread_fn=spread_fn,
    )
    width, split = hidden.shape[-1], batch.prompt_ids.shape[1]
    within = hidden[:, split:].reshape(n, group, length, width)[:, :, :-1]
    token_ids = with_top(batch.completion_ids, batch.top_ids)
    columns = token_ids.shape[-1]
    last = last_valid(hidden[:, :split], batch.prompt_mask)
    first, rest = both_queries(
        log_probs_fn,
        head_weight(params),
        jnp.asarray(temperature, jnp.float32),
        TokenQueries(hidden=last[:, None], token_ids=token_ids[:, None, :, 0]),
        TokenQueries(
            hidden=within.reshape(n, -1, width),
            token_ids=token_ids[:, :, 1:].reshape(n, -1, 1, columns),
        ),
    )

    def join(first: jax.Array, rest: jax.Array) -> jax.Array:
        inner = first.shape[2:]
        parts = first.reshape(n, group, 1, *inner), rest.reshape(n, group, length - 1, *inner)
        return jnp.concatenate(parts, axis=2)

    joined = jax.tree.map(join, first, rest)
    if value_head is not None:
        joined = joined._replace(values=values_of(value_head, last, within))

    def padded(x: jax.Array) -> jax.Array:
        mask = batch.completion_mask if x.ndim == 3 else batch.completion_mask[..., None]
        return jnp.where(mask, x, 0.0)

    return jax.tree.map(padded, joined)


def with_top(token_ids: jax.Array, top_ids: jax.Array | None) -> jax.Array:
    """Returns each token [..., 1], and behind it the likeliest at its place, 0 for none."""
    alone = token_ids[..., None]
    return alone if top_ids is None else jnp.concatenate([alone, jnp.maximum(top_ids, 0)], axis=-1)


class TokenQueries(NamedTuple):
    """Tokens whose log-probs are read from next-token distributions; leading axes are a batch's."""

    hidden: jax.Array
    """Shape [..., K, d]."""
    token_ids: jax.Array
    """Int [..., K, A, B]: B log-probs for each of A, that of the token itself first."""


def both_queries(
    log_probs_fn: HeadFn,
    embedding: jax.Array,
    temperature: jax.Array,
    firsts: TokenQueries,
    rest: TokenQueries,
) -> tuple[PolicyOutput[jax.Array], PolicyOutput[jax.Array]]:
    """Returns log-probs and entropies of first tokens and of the others, each [..., K * A], and the
    log-probs beyond the first [..., K * A, B - 1].

    Each prompt's last position predicts G tokens, each other one predicts one. The firsts have a
    call of their own, or, where that repeats few rows, are repeated among the others: each call has
    a gradient of the whole embedding.
    """

    def call(queries: TokenQueries) -> PolicyOutput[jax.Array]:
        flat = queries.hidden.reshape(-1, queries.hidden.shape[-1])
        *lead, rows, each, columns = queries.token_ids.shape
        token_ids = queries.token_ids.reshape(-1, each * columns)
        out = log_probs_fn(flat, embedding, token_ids, temperature)
        entropy = jnp.broadcast_to(out.entropy[:, None], (len(flat), each))
        entropy = entropy.reshape(*lead, rows * each)
        if columns == 1:
            return PolicyOutput(out.log_probs.reshape(entropy.shape), entropy)
        every = out.log_probs.reshape(*entropy.shape, columns)
        return PolicyOutput(every[..., 0], entropy, top_log_probs=every[..., 1:])

    *lead, _, group, columns = firsts.token_ids.shape
    if not in_one_call(firsts.token_ids.size // (group * columns), group):
        return call(firsts), call(rest)
    single = firsts.token_ids.reshape(*lead, -1, 1, columns)
    repeated = jnp.repeat(firsts.hidden, group, axis=-2)
    together = TokenQueries(
        hidden=jnp.concatenate([repeated, rest.hidden], axis=-2),
        token_ids=jnp.concatenate([single, rest.token_ids], axis=-3),
    )
    out, along = call(together), len(lead)
    cut = partial(jnp.split, indices_or_sections=[single.shape[-3]], axis=along)
    parts = jax.tree.map(cut, out)
    of = partial(jax.tree.map, is_leaf=lambda x: isinstance(x, list))
    return of(lambda x: x[0], parts), of(lambda x: x[1], parts)


def in_one_call(prompts: int, group: int) -> bool:
    """Whether first tokens share the call of the others."""
    return prompts * (group - 1) <= _FEW_ROWS


def flat_log_probs(
    params: Params,
    config: DecoderConfig,
    token_ids: jax.Array,
    mask: jax.Array,
    temperature: jax.Array | float,
) -> jax.Array:
    """Returns log-probs of tokens 1..S-1 of each row after those before: the grouped path's oracle.

    Args:
      params: as from `init_params`.
      config: their shape; static.
      token_ids: int [B, S].
      mask: bool [B, S], True on tokens, False on padding to the right.
      temperature: > 0.

    Returns:
      float32 [B, S-1]; 0 where the predicted token is padding.
    """
    scores = flat_logits(params, config, token_ids, mask)[:, :-1]
    log_probs = log_softmax(scores, jnp.asarray(temperature, jnp.float32))
    picked = jnp.take_along_axis(log_probs, token_ids[:, 1:, None], axis=-1)[..., 0]
    return jnp.where(mask[:, 1:], picked, 0.0)


def flat_logits(
    params: Params, config: DecoderConfig, token_ids: jax.Array, mask: jax.Array
) -> jax.Array:
    """Returns next-token logits float32 [B, S, V] of token rows [B, S] padded on the right."""
    rows, length = token_ids.shape
    hidden, _ = run_prompt(params, config, token_ids, mask)
    flat = hidden.reshape(rows * length, -1)
    return logits(flat, head_weight(params)).reshape(rows, length, -1)


def run_prompt(
    params: Params,
    config: DecoderConfig,
    token_ids: jax.Array,
    mask: jax.Array,
    *,
    attention_fn: AttentionFn = attend,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns hidden states [N, S, d], keys and values [L, N, S, K, D] of rows by themselves."""
    positions = jnp.broadcast_to(jnp.arange(token_ids.shape[1])[None], token_ids.shape)
    mix = partial(_mix_prompt, attention_fn, mask)
    return run_layers(params, config, token_ids, positions, mix)


def last_valid(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns entries [N, ...] of [N, S, ...] at each row's last True of a padded mask [N, S]."""
    last = jnp.sum(mask, axis=1, dtype=jnp.int32) - 1
    return values[jnp.arange(values.shape[0]), last]


def _mix_groups(batch: Batch[jax.Array], attention_fn: AttentionFn) -> MixFn:
    """Returns attention of rows P + G*T: a prompt to itself, a completion to both."""
    n, group, length = batch.completion_ids.shape
    split = batch.prompt_ids.shape[1]
    lengths = jnp.sum(batch.prompt_mask, axis=1, dtype=jnp.int32)[:, None, None]
    of_prompt = jnp.where(batch.completion_mask, lengths, 0)
    of_completion = causal(batch.completion_mask)

    def parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[:, :split], x[:, split:].reshape(n, group, length, *x.shape[2:])

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, context: Any) -> jax.Array:
        (q, late_q), (k, late_k), (v, late_v) = map(parts, (queries, keys, values))
        segments = [KeySegment(k, v, of_prompt), KeySegment(late_k, late_v, of_completion)]
        prompt = _mix_prompt(attention_fn, batch.prompt_mask, q, k, v, context)
        grouped = attention_fn(late_q, segments).reshape(n, group * length, *q.shape[2:])
        return jnp.concatenate([prompt, grouped], axis=1)

    return mix


def _mix_prompt(
    attention_fn: AttentionFn,
    mask: jax.Array,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    _context: Any,
) -> jax.Array:
    segment = KeySegment(keys, values, causal(mask)[:, None])
    return attention_fn(queries[:, None], [segment])[:, 0]


def _check_batch(config: DecoderConfig, batch: Batch[jax.Array]) -> None:
    prompt, completion = batch.prompt_ids.shape, batch.completion_ids.shape
    agree = (
        len(prompt) == 2
        and len(completion) == 3
        and prompt[0] == completion[0]
        and batch.prompt_mask.shape == prompt
        and batch.completion_mask.shape == completion
    )
    if not agree:
        raise ValueError(
            "a batch is prompts [N, P] and completions [N, G, T], each with a mask of its shape;"
            f" got prompts {prompt}, {batch.prompt_mask.shape} and completions {completion},"
            f" {batch.completion_mask.shape}"
        )
    check_positions(config, prompt[1], completion[2])


def check_positions(config: DecoderConfig, prompt: int, completion: int) -> None:
    """Raises ValueError where prompt and completion together pass the model's positions."""
    if min(prompt, completion) < 1 or prompt + completion > config.max_positions:
        raise ValueError(
            f"prompt ({prompt}) and completion ({completion}) must each hold at least one token"
            f" and together fit the model's max_positions ({config.max_positions})"
        )
