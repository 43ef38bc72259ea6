"""Attention over segments: one softmax over keys that live in several places.

A group's completions attend to their prompt's keys, stored once, and to their own. Keeping the
two apart (and joining them only in the softmax) is what lets a prompt serve G completions without
being repeated G times.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class KeySegment(NamedTuple):
    """Keys and values that queries of a group attend to.

    `keys` and `values` are [N, S, K, D] when the whole group shares them, or [N, G, S, K, D].
    `mask` is bool, [N, G, T, S] or broadcastable to it: True where a query may look.
    """

    keys: jax.Array
    values: jax.Array
    mask: jax.Array


AttentionFn = Callable[[jax.Array, Sequence[KeySegment]], jax.Array]
"""Maps queries [N, G, T, H, D] and segments to [N, G, T, H, D]."""


def attend(queries: jax.Array, segments: Sequence[KeySegment]) -> jax.Array:
    """Softmax attention over the union of the segments, with grouped-query heads.

    out = sum_s softmax_s(q . k_s / sqrt(D)) v_s, s running over every segment's keys where its mask
    is True; head h of H reads key/value head h // (H/K). The softmax is taken in float32 whatever
    the dtype. Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 (GQA).

    Args:
      queries: [N, G, T, H, D].
      segments: keys, values and masks; at least one key must be visible to each query that counts.

    Returns:
      [N, G, T, H, D] in the dtype of `queries`. A query that sees no key gets a finite average.
    """
    n, g, t, h, d = queries.shape
    kv_heads = segments[0].keys.shape[-2]
    grouped = queries.reshape(n, g, t, kv_heads, h // kv_heads, d)
    scores = jnp.concatenate([_scores(grouped, segment) for segment in segments], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1).astype(queries.dtype)
    ends = np.cumsum([segment.mask.shape[-1] for segment in segments])[:-1]
    parts = jnp.split(weights, ends, axis=-1)
    mixed = [_mix(part, segment.values) for part, segment in zip(parts, segments, strict=True)]
    return sum(mixed[1:], mixed[0]).reshape(queries.shape)


def _scores(grouped: jax.Array, segment: KeySegment) -> jax.Array:
    """Scaled, masked float32 scores [N, K, G, T, R, S] of queries [N, G, T, K, R, D]."""
    keys = "nskd" if segment.keys.ndim == 4 else "ngskd"
    raw = jnp.einsum(
        f"ngtkrd,{keys}->nkgtrs", grouped, segment.keys, preferred_element_type=jnp.float32
    )
    visible = segment.mask[:, None, :, :, None, :]
    return jnp.where(visible, raw * grouped.shape[-1] ** -0.5, jnp.finfo(jnp.float32).min)


def _mix(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Average of the values under weights [N, K, G, T, R, S]: [N, G, T, K, R, D]."""
    layout = "nskd" if values.ndim == 4 else "ngskd"
    return jnp.einsum(f"nkgtrs,{layout}->ngtkrd", weights, values)


def causal(length: int) -> jax.Array:
    """The mask [1, 1, T, T] by which a token sees itself and what came before."""
    return jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
