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

KEPT = "attention"
"""The `checkpoint_name` of outputs that cost more to compute again than to keep."""


class KeySegment(NamedTuple):
    """Keys and values that queries of a group attend to.

    Whatever is padded is padded on the right, and nobody looks ahead: a query sees the first so
    many keys of a segment, and one number says which.
    """

    keys: jax.Array
    """Shape [U, S, K, D] when a whole group shares them, or [U, G, S, K, D]."""
    values: jax.Array
    """As the keys."""
    seen: jax.Array
    """Int [N, G, T] or broadcastable to it: keys that a query sees, from the first one on."""
    rows: jax.Array | None = None
    """Int [N], in [0, U): whose keys row n reads; None where they are its own, U = N."""


AttentionFn = Callable[[jax.Array, Sequence[KeySegment]], jax.Array]
"""Maps queries [N, G, T, H, D] and segments to [N, G, T, H, D]."""


def attend(queries: jax.Array, segments: Sequence[KeySegment]) -> jax.Array:
    """Softmax attention over the union of the segments, with grouped-query heads.

    out = sum_s softmax_s(q . k_s / sqrt(D)) v_s, s running over the keys that the query sees
    of every segment; head h of H reads key/value head h // (H/K). The softmax is taken in
    float32 whatever the dtype (float64 for float64, the yardstick of errors). Vaswani et al. 2017,
    eq. 1; Ainslie et al. 2023 (GQA).

    All scores are held at once: this is the oracle of `ogrpo.kernels.attention`, and the fastest
    where they are few.

    Args:
      queries: [N, G, T, H, D].
      segments: keys, values and what is seen of them; a query that counts sees at least one key.

    Returns:
      [N, G, T, H, D] in the dtype of `queries`. A query that sees no key gets a finite average.
    """
    n, g, t, h, d = queries.shape
    kv_heads = segments[0].keys.shape[-2]
    grouped = queries.reshape(n, g, t, kv_heads, h // kv_heads, d)
    scores = jnp.concatenate([_scores(grouped, segment) for segment in segments], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1).astype(queries.dtype)
    ends = np.cumsum([segment.keys.shape[-3] for segment in segments])[:-1]
    parts = jnp.split(weights, ends, axis=-1)
    mixed = [
        _mix(part, _read(segment.values, segment.rows))
        for part, segment in zip(parts, segments, strict=True)
    ]
    return sum(mixed[1:], mixed[0]).reshape(queries.shape)


def _scores(grouped: jax.Array, segment: KeySegment) -> jax.Array:
    """Scaled, masked float32 scores [N, K, G, T, R, S] of queries [N, G, T, K, R, D]."""
    keys = _read(segment.keys, segment.rows)
    layout = "nskd" if keys.ndim == 4 else "ngskd"
    wide = jnp.float64 if grouped.dtype == jnp.float64 else jnp.float32
    raw = jnp.einsum(f"ngtkrd,{layout}->nkgtrs", grouped, keys, preferred_element_type=wide)
    place = jnp.arange(keys.shape[-3], dtype=jnp.int32).reshape(1, 1, 1, 1, 1, -1)
    visible = place < segment.seen[:, None, :, :, None, None]
    return jnp.where(visible, raw * grouped.shape[-1] ** -0.5, jnp.finfo(wide).min)


def _read(keys: jax.Array, rows: jax.Array | None) -> jax.Array:
    return keys if rows is None else keys[rows]


def _mix(weights: jax.Array, values: jax.Array) -> jax.Array:
    """Average of the values under weights [N, K, G, T, R, S]: [N, G, T, K, R, D]."""
    layout = "nskd" if values.ndim == 4 else "ngskd"
    return jnp.einsum(f"nkgtrs,{layout}->ngtkrd", weights, values)


def causal(mask: jax.Array) -> jax.Array:
    """What tokens see of their own row, int32 [..., T]: what came before and themselves.

    Args:
      mask: bool [..., T], True on tokens, False on padding to the right, which sees nothing.
    """
    place = jnp.arange(1, mask.shape[-1] + 1, dtype=jnp.int32)
    return jnp.where(mask, place.reshape(*(1,) * (mask.ndim - 1), -1), 0)
