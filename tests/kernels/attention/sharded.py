"""Eight host devices: rows over four, heads over two or repeated, against one device."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.attention.blocked import attention_over_mesh, blocked_attention
from ogrpo.policy.attention import KeySegment, attend, causal
from ogrpo.policy.flops import Step

N, G, LENGTH, T, H, D = 4, 3, 5, 9, 6, 8
BLOCKED = partial(blocked_attention, tile=Step(4, 3))
Arrays = tuple[jax.Array, ...]


def draw(heads: int, *, packed: bool) -> Arrays:
    """Queries, keys and values of prompts and completions, and a cotangent."""
    rng = np.random.default_rng(heads)
    rows = N * G if packed else N
    q, private = (rows, 1 if packed else G, T, H, D), (N * G, T) if packed else (N, G, T)
    shapes = (
        q,
        (N, LENGTH, heads, D),
        (N, LENGTH, heads, D),
        (*private, heads, D),
        (*private, heads, D),
        q,
    )
    arrays = [rng.normal(size=shape) for shape in shapes]
    arrays[-1] *= np.asarray(there()).reshape(q[:3])[..., None, None]  # as a loss has it
    return tuple(jnp.asarray(x, jnp.float32) for x in arrays)


def there() -> jax.Array:
    return jnp.arange(T) < jnp.asarray(np.arange(N * G) % T + 1).reshape(N, G, 1)


def segments(keys: Arrays, *, packed: bool) -> list[KeySegment]:
    """Packed, a row's keys are found by index among those of its device, backwards."""
    lengths = jnp.asarray([5, 2, 3, 1], jnp.int32)
    mask = there()
    shared = jnp.where(mask, lengths[:, None, None], 0)
    if not packed:
        return [KeySegment(*keys[:2], shared), KeySegment(*keys[2:], causal(mask))]
    group = jnp.repeat(jnp.arange(N, dtype=jnp.int32), G)
    positions = G * group + (G - 1 - jnp.tile(jnp.arange(G, dtype=jnp.int32), N))
    return [
        KeySegment(*keys[:2], shared.reshape(-1, 1, T), group),
        KeySegment(*keys[2:], causal(mask).reshape(-1, 1, T), positions),
    ]


def compute(kernel: Any, arrays: Arrays, *, packed: bool) -> Any:
    """Two layers as the decoder runs them, and gradients of everything."""

    def total(q: jax.Array, *keys: jax.Array) -> jax.Array:
        def layer(x: jax.Array, scale: jax.Array) -> tuple[jax.Array, None]:
            scaled = tuple(scale * part for part in keys)
            return x + kernel(x, segments(scaled, packed=packed)), None

        out, _ = jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), q, jnp.asarray([0.5, 1.0]))
        return jnp.sum(out * arrays[-1])

    return jax.value_and_grad(total, tuple(range(5)))(*arrays[:-1])


def check(mesh: jax.sharding.Mesh, heads: int, *, packed: bool) -> None:
    arrays = draw(heads, packed=packed)
    kernel = attention_over_mesh(mesh, rows=("data", "fsdp"), heads="tensor", attention_fn=BLOCKED)
    placed = jax.device_put(arrays, NamedSharding(mesh, P(("data", "fsdp"))))
    actual = jax.jit(partial(compute, kernel, packed=packed))(placed)
    expected = jax.jit(partial(compute, attend, packed=packed))(arrays)
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, actual, expected)


if __name__ == "__main__":
    kinds = (AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=kinds)
    check(mesh, 2, packed=False)
    check(mesh, 2, packed=True)
    check(mesh, 3, packed=False)
    print("equal")
