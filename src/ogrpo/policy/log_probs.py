"""Log-probabilities of completions, each prompt computed once for its whole group.

    prompts [N, P], completions [N, G, T]  ->  tokens [N, P + G*T]  ->  layers  ->  hidden
    the last prompt position predicts token 0 of every completion; position t predicts token t + 1

Norms, projections and MLP see one flat row of tokens; only attention knows the group: a prompt
attends to itself, and a completion to its prompt's keys, which are stored once, and to itself.
"""

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
from ogrpo.policy.head import HeadFn, log_softmax, logits, token_log_probs
from ogrpo.policy.value import apart, values_of

_FEW_ROWS = 64


def completion_log_probs(
    params: Params,
    config: DecoderConfig,
    batch: Batch[jax.Array],
    temperature: jax.Array | float,
    *,
    attention_fn: AttentionFn = attend,
    log_probs_fn: HeadFn = token_log_probs,
    keep_fn: KeepFn = keep_products,
    spread_fn: SpreadFn = lambda x: x,
) -> jax.Array:
    """log pi(completion token | prompt, earlier tokens) = log_softmax(z / temperature)[token].

    The arguments are those of `completion_log_probs_and_entropy`, and so is the first result:
    float32 [N, G, T], 0 on padding.
    """
    return completion_log_probs_and_entropy(
        params,
        config,
        batch,
        temperature,
        attention_fn=attention_fn,
        log_probs_fn=log_probs_fn,
        keep_fn=keep_fn,
        spread_fn=spread_fn,
    ).log_probs


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
    """Log-probs of the completions' tokens and the entropy of what each was drawn from.

    Args:
      params: as from `init_params`; their dtype is that of the computation (softmaxes and
        log-probs are float32 in any case).
      config: their shape; static.
      batch: prompts and completions; its tokens and their masks are read, and nothing else.
      temperature: > 0; may be traced.
      attention_fn: attention over segments.
      log_probs_fn: hidden states to log-probs.
      keep_fn: what layers keep for the backward pass (see `run_layers`).
      spread_fn: pins hidden states to a mesh of devices (see `run_layers`).

    Returns:
      Log-probs and entropy, float32 [N, G, T], both 0 on padding; values too, if there is a value
      head among the parameters (`value.with_value_head`).

    Raises:
      ValueError: shapes that do not agree, or P + T beyond the model's positions.
    """
    _check_batch(config, batch)
    n, group, length = batch.completion_ids.shape
    params, value_head = apart(params)
    hidden = _packed_hidden(params, config, batch, attention_fn, keep_fn, spread_fn)
    width, split = hidden.shape[-1], batch.prompt_ids.shape[1]
    within = hidden[:, split:].reshape(n, group, length, width)[:, :, :-1]
    last = last_valid(hidden[:, :split], batch.prompt_mask)
    first, rest = ask(
        log_probs_fn,
        head_weight(params),
        jnp.asarray(temperature, jnp.float32),
        TokenQueries(hidden=last[:, None], token_ids=batch.completion_ids[:, None, :, 0]),
        TokenQueries(
            hidden=within.reshape(n, -1, width),
            token_ids=batch.completion_ids[:, :, 1:].reshape(n, -1, 1),
        ),
    )
    joined = jax.tree.map(partial(_join, (n, group, length)), first, rest)
    if value_head is not None:
        joined = joined._replace(values=values_of(value_head, last, within))
    return jax.tree.map(lambda x: jnp.where(batch.completion_mask, x, 0.0), joined)


class TokenQueries(NamedTuple):
    """Tokens asked of next-token distributions; leading axes are a batch's own."""

    hidden: jax.Array
    """Shape [..., K, d]."""
    token_ids: jax.Array
    """Int [..., K, A]."""


def ask(
    log_probs_fn: HeadFn,
    embedding: jax.Array,
    temperature: jax.Array,
    firsts: TokenQueries,
    rest: TokenQueries,
) -> tuple[PolicyOutput[jax.Array], PolicyOutput[jax.Array]]:
    """Log-probs and entropies of first tokens and of the others, each [..., K * A].

    Each prompt's last position is asked for G tokens, each other one for one. The firsts have a
    call of their own, or, where that repeats few rows, are repeated among the others: each call has
    a gradient of the whole embedding.
    """
    group = firsts.token_ids.shape[-1]
    if not asked_together(firsts.token_ids.size // group, group):
        alone = partial(_asked, log_probs_fn, embedding, temperature)
        return alone(firsts), alone(rest)
    single = firsts.token_ids.reshape(*firsts.token_ids.shape[:-2], -1, 1)
    repeated = jnp.repeat(firsts.hidden, group, axis=-2)
    together = TokenQueries(
        hidden=jnp.concatenate([repeated, rest.hidden], axis=-2),
        token_ids=jnp.concatenate([single, rest.token_ids], axis=-2),
    )
    out = _asked(log_probs_fn, embedding, temperature, together)
    cut = partial(jnp.split, indices_or_sections=[single.shape[-2]], axis=-1)
    log_probs, entropy = cut(out.log_probs), cut(out.entropy)
    return (
        PolicyOutput(log_probs=log_probs[0], entropy=entropy[0]),
        PolicyOutput(log_probs=log_probs[1], entropy=entropy[1]),
    )


def asked_together(prompts: int, group: int) -> bool:
    """Whether first tokens share the call of the others."""
    return prompts * (group - 1) <= _FEW_ROWS


def _asked(
    log_probs_fn: HeadFn, embedding: jax.Array, temperature: jax.Array, asked: TokenQueries
) -> PolicyOutput[jax.Array]:
    width, group = asked.hidden.shape[-1], asked.token_ids.shape[-1]
    flat = asked.hidden.reshape(-1, width), embedding, asked.token_ids.reshape(-1, group)
    out = log_probs_fn(*flat, temperature)
    shape = (*asked.token_ids.shape[:-2], -1)
    entropy = jnp.broadcast_to(out.entropy[:, None], out.log_probs.shape)
    return PolicyOutput(log_probs=out.log_probs.reshape(shape), entropy=entropy.reshape(shape))


def flat_log_probs(
    params: Params,
    config: DecoderConfig,
    token_ids: jax.Array,
    mask: jax.Array,
    temperature: jax.Array | float,
) -> jax.Array:
    """Log-probs of tokens 1..S-1 of each row given those before: the oracle of the grouped path.

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
    """Next-token logits float32 [B, S, V] of token rows [B, S] padded on the right."""
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
    """Hidden states [N, S, d], and keys and values [L, N, S, K, D], of rows on their own."""
    positions = jnp.broadcast_to(jnp.arange(token_ids.shape[1])[None], token_ids.shape)
    mix = partial(_mix_prompt, attention_fn, mask)
    return run_layers(params, config, token_ids, positions, mix)


def last_valid(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The entry of [N, S, ...] at each row's last True of a right-padded mask [N, S]: [N, ...]."""
    last = jnp.sum(mask, axis=1, dtype=jnp.int32) - 1
    return values[jnp.arange(values.shape[0]), last]


def _packed_hidden(
    params: Params,
    config: DecoderConfig,
    batch: Batch[jax.Array],
    attention_fn: AttentionFn,
    keep_fn: KeepFn,
    spread_fn: SpreadFn,
) -> jax.Array:
    """Hidden states [N, P + G*T, d] of prompts followed by all their completions."""
    n, group, length = batch.completion_ids.shape
    prompt = jnp.broadcast_to(jnp.arange(batch.prompt_ids.shape[1])[None], batch.prompt_ids.shape)
    starts = jnp.sum(batch.prompt_mask, axis=1, dtype=jnp.int32)
    within = jnp.tile(jnp.arange(length), group)[None]
    positions = jnp.concatenate([prompt, starts[:, None] + within], axis=1)
    ids = [batch.prompt_ids, batch.completion_ids.reshape(n, group * length)]
    mix = _packed_mix(batch, attention_fn)
    tokens = jnp.concatenate(ids, axis=1)
    return run_layers(params, config, tokens, positions, mix, keep_fn=keep_fn, spread_fn=spread_fn)[
        0
    ]


def _packed_mix(batch: Batch[jax.Array], attention_fn: AttentionFn) -> MixFn:
    n, group, length = batch.completion_ids.shape
    split = batch.prompt_ids.shape[1]
    lengths = jnp.sum(batch.prompt_mask, axis=1, dtype=jnp.int32)[:, None, None]
    of_prompt = jnp.where(batch.completion_mask, lengths, 0)
    of_own = causal(batch.completion_mask)

    def parts(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[:, :split], x[:, split:].reshape(n, group, length, *x.shape[2:])

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, context: Any) -> jax.Array:
        (q, own_q), (k, own_k), (v, own_v) = map(parts, (queries, keys, values))
        shared, own = KeySegment(k, v, of_prompt), KeySegment(own_k, own_v, of_own)
        prompt = _mix_prompt(attention_fn, batch.prompt_mask, q, k, v, context)
        grouped = attention_fn(own_q, [shared, own]).reshape(n, group * length, *q.shape[2:])
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
    own = KeySegment(keys, values, causal(mask)[:, None])
    return attention_fn(queries[:, None], [own])[:, 0]


def _join(shape: tuple[int, int, int], first: jax.Array, rest: jax.Array) -> jax.Array:
    """Values of first tokens [N, G] and of the others [N, G * (T-1)] as [N, G, T]."""
    n, group, length = shape
    parts = first.reshape(n, group, 1), rest.reshape(n, group, length - 1)
    return jnp.concatenate(parts, axis=-1)


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
    """Raise ValueError where prompt and completion together pass the model's positions."""
    if min(prompt, completion) < 1 or prompt + completion > config.max_positions:
        raise ValueError(
            f"prompt ({prompt}) and completion ({completion}) must each hold at least one token"
            f" and together fit the model's max_positions ({config.max_positions})"
        )
