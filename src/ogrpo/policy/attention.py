"""Attention over segments: one softmax over keys that live in several places; and rotation.

A group's completions attend to their prompt's keys, stored once, and to their own. Keeping the
two apart (and joining them only in the softmax) lets a prompt serve G completions without being
repeated G times.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.policy.config import DecoderConfig

KEPT = "attention"
"""The `checkpoint_name` of outputs that cost more to compute again than to keep."""


class KeySegment(NamedTuple):
    """Keys and values that queries of a group attend to.

    All padding is on the right and no query looks ahead: one number says how many keys, from the
    first one on, it sees.
    """

    keys: jax.Array
    """Shape [U, S, K, D] when a whole group shares them, or [U, G, S, K, D]."""
    values: jax.Array
    """As the keys."""
    seen: jax.Array
    """Int [N, G, T] or broadcastable to it: keys that a query sees, from the first one on."""
    rows: jax.Array | None = None
    """Int [N], in [0, U): the row of keys that row n reads; None: row n, U = N."""


AttentionFn = Callable[[jax.Array, Sequence[KeySegment]], jax.Array]
"""Maps queries [N, G, T, H, D] and segments to [N, G, T, H, D]."""


def attend(queries: jax.Array, segments: Sequence[KeySegment]) -> jax.Array:
    """Returns softmax attention over the union of the segments, with grouped-query heads.

    out = sum_s softmax_s(q . k_s / sqrt(D)) v_s, s running over the keys that the query sees
    of every segment; head h of H reads key/value head h // (H/K). The softmax is taken in
    float32 whatever the dtype (float64 for float64, the yardstick of errors). Vaswani et al.
    2017, arXiv:1706.03762, eq. 1; Ainslie et al. 2023, arXiv:2305.13245 (GQA).

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
    mixed = [_mix(part, segment) for part, segment in zip(parts, segments, strict=True)]
    return sum(mixed[1:], mixed[0]).reshape(queries.shape)


def _scores(grouped: jax.Array, segment: KeySegment) -> jax.Array:
    """Returns scaled, masked float32 scores [N, K, G, T, R, S] of queries [N, G, T, K, R, D]."""
    keys = segment.keys if segment.rows is None else segment.keys[segment.rows]
    wide = jnp.float64 if grouped.dtype == jnp.float64 else jnp.float32
    dot = partial(jnp.einsum, preferred_element_type=wide)
    if keys.ndim == 4:
        raw = dot("ngtkrd,nskd->nkgtrs", grouped, keys)
    else:  # in the order of the keys: for another, XLA's CPU backend copies them
        raw = jnp.swapaxes(dot("ngtkrd,ngskd->ngktrs", grouped, keys), 1, 2)
    place = jnp.arange(keys.shape[-3], dtype=jnp.int32).reshape(1, 1, 1, 1, 1, -1)
    visible = place < segment.seen[:, None, :, :, None, None]
    return jnp.where(visible, raw * grouped.shape[-1] ** -0.5, jnp.finfo(wide).min)


def _mix(weights: jax.Array, segment: KeySegment) -> jax.Array:
    """Averages values under weights [N, K, G, T, R, S]: [N, G, T, K, R, D]."""
    values = segment.values if segment.rows is None else segment.values[segment.rows]
    layout = "nskd" if values.ndim == 4 else "ngskd"
    return jnp.einsum(f"nkgtrs,{layout}->ngtkrd", weights, values)


def causal(mask: jax.Array) -> jax.Array:
    """Counts the tokens of its row that each token sees, int32 [..., T]: earlier ones and itself.

    Args:
      mask: bool [..., T], True on tokens, False on padding to the right, which sees nothing.
    """
    place = jnp.arange(1, mask.shape[-1] + 1, dtype=jnp.int32)
    return jnp.where(mask, place.reshape(*(1,) * (mask.ndim - 1), -1), 0)


def inverse_frequencies(config: DecoderConfig) -> NDArray[np.float32]:
    """Returns the angle per position of each pair, float32 [D/2]: theta^(-2i/D).

    Su et al. 2021, "RoFormer", arXiv:2104.09864, section 3.2.2. With `rope_scaling`, long
    wavelengths are divided by `factor`, short ones kept, and those in between blended linearly:
    Llama 3.1's context extension (Grattafiori et al. 2024, arXiv:2407.21783).
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    plain = (1.0 / config.rope_theta**exponents).astype(np.float32)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    turns = scaling.original_max_positions * plain / (2 * np.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / width, 0.0, 1.0)
    return (keep * plain + (1 - keep) * plain / scaling.factor).astype(np.float32)


def rotation(config: DecoderConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns cos and sin of position * frequency, float32 [..., D/2], for int positions [...]."""
    angles = positions.astype(jnp.float32)[..., None] * jnp.expand_dims(
        inverse_frequencies(config), tuple(range(positions.ndim))
    )
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns each pair (x_i, x_{i + D/2}) by its angle, in float32.

    Args:
      x: [N, S, H, D], any float dtype; the result has the same.
      turn: cos and sin [N, S, D/2].
    """
    cos, sin = (part[:, :, None, :] for part in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
