"""Queries of ragged groups, their segments in each layout, and values with gradients."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy.attention import KeySegment, causal

N, G, P, T, H, K, D = 4, 3, 7, 9, 6, 2, 8
Lengths = tuple[Sequence[int], Sequence[int]]
"""Of N prompts, and of N G completions."""
FULL: Lengths = ([P] * N, [T] * (N * G))


def there(lengths: Any) -> jax.Array:
    """Bool [N, G, T], True on tokens of completions."""
    completions = jnp.asarray(lengths[1], jnp.int32).reshape(N, G, 1)
    return jnp.arange(T, dtype=jnp.int32)[None, None] < completions


def segments(layout: str, lengths: Any, arrays: Sequence[Any]) -> list[KeySegment]:
    """A group's prompt and own completions; packed, rows are found by index, a group's backwards."""
    pk, pv, k, v = arrays
    mask = there(lengths)
    shared = jnp.where(mask, jnp.asarray(lengths[0], jnp.int32)[:, None, None], 0)
    if layout == "padded":
        return [KeySegment(pk, pv, shared), KeySegment(k, v, causal(mask))]
    flat = [x[:, ::-1].reshape(N * G, *x.shape[2:]) for x in (k, v)]
    groups = jnp.repeat(jnp.arange(N, dtype=jnp.int32), G)
    positions = G * groups + G - 1 - jnp.tile(jnp.arange(G, dtype=jnp.int32), N)
    return [
        KeySegment(pk, pv, shared.reshape(-1, 1, T), groups),
        KeySegment(*flat, causal(mask).reshape(-1, 1, T), positions),
    ]


def draw(seed: int, lengths: Lengths, dtype: Any = jnp.float32, kv_heads: int = K) -> list[Any]:
    """Queries, keys and values, and a cotangent that is 0 on padding, as a loss has it."""
    rng = np.random.default_rng(seed)
    q, shared, private = (N, G, T, H, D), (N, P, kv_heads, D), (N, G, T, kv_heads, D)
    arrays = [rng.normal(size=shape) for shape in (q, shared, shared, private, private, q)]
    arrays[-1] *= np.asarray(there(lengths))[..., None, None]
    return [jnp.asarray(x, dtype) for x in arrays]


def attention(kernel: Any, layout: str, lengths: Any, q: Any, *keys: Any) -> Any:
    """The kernel's outputs [N, G, T, H, D] in a layout, 0 on padding."""
    rows = q if layout == "padded" else q.reshape(N * G, 1, T, H, D)
    mixed = kernel(rows, segments(layout, lengths, keys)).reshape(q.shape)
    return jnp.where(there(lengths)[..., None, None], mixed, 0)


def computed(kernel: Any, layout: str, lengths: Any, arrays: Sequence[Any]) -> Any:
    mixed, pull = jax.vjp(partial(attention, kernel, layout, lengths), *arrays[:-1])
    return mixed, *pull(arrays[-1])


def layers(kernel: Any, keep_fn: Any, layout: str, lengths: Any, arrays: Sequence[Any]) -> Any:
    """Two layers as the decoder runs them, a scan whose steps are computed again; all gradients."""
    weights = jnp.stack([jnp.eye(D), 0.5 * jnp.eye(D)[::-1]])

    def total(q: Any, *keys: Any) -> Any:
        def layer(x: Any, weight: Any) -> Any:
            turned = [jnp.einsum("...d,de->...e", part, weight) for part in keys]
            return x + attention(kernel, layout, lengths, x, *turned), None

        step = jax.checkpoint(layer, prevent_cse=False, policy=keep_fn)
        out, _ = jax.lax.scan(step, q, weights)
        return jnp.sum(out * arrays[-1])

    return jax.value_and_grad(total, tuple(range(5)))(*arrays[:-1])


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
