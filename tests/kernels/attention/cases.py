"""Queries of ragged groups, their segments in each layout, and values with gradients."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy.attention import KeySegment, causal

N, G, P, T, H, K, D = 2, 3, 7, 9, 6, 2, 8
Lengths = tuple[Sequence[int], Sequence[int]]
"""Of N prompts, and of N G completions."""
FULL: Lengths = ([P] * N, [T] * (N * G))


def there(lengths: Any) -> jax.Array:
    """Bool [N, G, T], True on tokens of completions."""
    completions = jnp.asarray(lengths[1], jnp.int32).reshape(N, G, 1)
    return jnp.arange(T, dtype=jnp.int32)[None, None] < completions


def segments(layout: str, lengths: Any, arrays: Sequence[Any]) -> list[KeySegment]:
    """A group's prompt and own completions; packed, rows of keys are found by index, backwards."""
    pk, pv, k, v = arrays
    mask = there(lengths)
    shared = jnp.where(mask, jnp.asarray(lengths[0], jnp.int32)[:, None, None], 0)
    if layout == "padded":
        return [KeySegment(pk, pv, shared), KeySegment(k, v, causal(mask))]
    flat = [x.reshape(N * G, T, K, D)[::-1] for x in (k, v)]
    groups = jnp.repeat(jnp.arange(N, dtype=jnp.int32), G)
    positions = jnp.arange(N * G, dtype=jnp.int32)[::-1]
    return [
        KeySegment(pk[::-1], pv[::-1], shared.reshape(-1, 1, T), N - 1 - groups),
        KeySegment(flat[0], flat[1], causal(mask).reshape(-1, 1, T), positions),
    ]


def draw(seed: int, lengths: Lengths, dtype: Any = jnp.float32) -> list[Any]:
    """Queries, keys and values, and a cotangent that is 0 on padding, as a loss has it."""
    rng = np.random.default_rng(seed)
    q, shared, private = (N, G, T, H, D), (N, P, K, D), (N, G, T, K, D)
    arrays = [rng.normal(size=shape) for shape in (q, shared, shared, private, private, q)]
    arrays[-1] *= np.asarray(there(lengths))[..., None, None]
    return [jnp.asarray(x, dtype) for x in arrays]


def computed(kernel: Any, layout: str, lengths: Any, arrays: Sequence[Any]) -> Any:
    q, *keys, cotangent = arrays

    def out(q: Any, *keys: Any) -> Any:
        rows = q if layout == "padded" else q.reshape(N * G, 1, T, H, D)
        mixed = kernel(rows, segments(layout, lengths, keys)).reshape(q.shape)
        return jnp.where(there(lengths)[..., None, None], mixed, 0)

    mixed, pull = jax.vjp(out, q, *keys)
    return mixed, *pull(cotangent)


jitted = jax.jit(computed, static_argnums=(0, 1))


def values_and_gradients(kernel: Any, layout: str, lengths: Lengths, arrays: Sequence[Any]) -> Any:
    return jitted(kernel, layout, tuple(map(np.array, lengths)), arrays)


def in_float64(kernel: Any, layout: str, lengths: Lengths, arrays: Sequence[Any]) -> Any:
    with jax.enable_x64(True):
        wide = [x.astype(jnp.float64) for x in arrays]
        return jax.tree.map(np.asarray, values_and_gradients(kernel, layout, lengths, wide))


def errors(actual: Any, exact: Any) -> list[float]:
    """Largest error of each array over its largest entry, or over 1 where that is less."""
    return [
        float(np.max(np.abs(np.asarray(a, np.float64) - b)) / max(1, np.max(np.abs(b))))
        for a, b in zip(actual, exact, strict=True)
    ]
