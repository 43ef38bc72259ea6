"""Kernels on eight devices against one: attention's rows and heads are cut, and log-probs' vocabulary."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.attention.blocked import attention_over_mesh, blocked_attention
from ogrpo.kernels.log_probs import chunked_log_probs
from ogrpo.kernels.log_probs.chunked import log_probs_over_mesh
from ogrpo.policy.attention import attend
from ogrpo.policy.decoder import keep_nothing
from ogrpo.policy.flops import Tile
from tests.kernels.attention import cases as attention
from tests.kernels.log_probs import cases as log_probs

BLOCKED = partial(blocked_attention, tile=Tile(4, 3))
LENGTHS = [5, 2, 3, 1], [n % attention.T + 1 for n in range(attention.N * attention.G)]


def check_attention(mesh: Mesh, kv_heads: int, layout: str) -> None:
    """Rows over four devices, heads over two where these divide them."""
    arrays = attention.draw(kv_heads, LENGTHS, kv_heads=kv_heads)
    kernel = attention_over_mesh(mesh, rows=("data", "fsdp"), heads="tensor", attention_fn=BLOCKED)
    placed = jax.device_put(arrays, NamedSharding(mesh, P(("data", "fsdp"))))
    actual, expected = (
        jax.jit(partial(attention.layers, fn, keep_nothing, layout, LENGTHS))(inputs)
        for fn, inputs in ((kernel, placed), (attend, arrays))
    )
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, actual, expected)


def check_log_probs(mesh: Mesh) -> None:
    """The vocabulary over four devices, rows over two or not at all; bfloat16 as on one device."""
    for rows, dtype, most in (
        ("data", jnp.float32, [*[3e-6] * 4, 3e-5]),
        ((), jnp.float32, [*[3e-6] * 4, 3e-5]),
        ("data", jnp.bfloat16, [1e-6, 1e-6, 1e-2, 1e-2, 2e-2]),
    ):
        cut = log_probs_over_mesh(mesh, vocabulary="vocab", rows=rows, width=5, block=3)
        gaps = log_probs.errors(cut, log_probs.draw(5, dtype=dtype))
        assert np.all(np.array(gaps) <= most), (rows, gaps)


def check_refusal(mesh: Mesh) -> None:
    kernel = partial(chunked_log_probs, axis_name="vocab")
    whole = jax.shard_map(kernel, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(ValueError, match="does not vary over mesh axis 'vocab'"):
        whole(*log_probs.draw(0)[:4])


def check_kernels() -> None:
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    check_attention(mesh, 2, "padded")
    check_attention(mesh, 2, "packed")
    check_attention(mesh, 3, "packed")
    mesh = jax.make_mesh((2, 4), ("data", "vocab"), axis_types=(AxisType.Auto,) * 2)
    check_log_probs(mesh)
    check_refusal(mesh)
