"""Eight host devices: a vocabulary cut over four, rows over two, against one device."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
)

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.log_probs import chunked_log_probs, reference_log_probs
from ogrpo.kernels.log_probs.chunked import log_probs_over_mesh
from tests.kernels.log_probs.cases import compiled, draw, errors

NAMES = ("log-probs", "entropy", "d hidden", "d embedding", "d temperature")


def check_parity(mesh: jax.sharding.Mesh) -> None:
    case = draw(5)
    expected = compiled(reference_log_probs)(case)
    for rows in ((), "data"):
        cut = log_probs_over_mesh(mesh, vocabulary="vocab", rows=rows, width=5, block=3)
        for what, a, b in zip(NAMES, compiled(cut)(case), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6, err_msg=f"{what}, {rows=}")


def check_bfloat16(mesh: jax.sharding.Mesh) -> None:
    cut = log_probs_over_mesh(mesh, vocabulary="vocab", rows="data", width=5, block=3)
    gaps = errors(cut, draw(5, dtype=jnp.bfloat16))
    assert np.all(np.array(gaps) <= [1e-6, 1e-6, 1e-2, 1e-2, 2e-2]), gaps


def check_refusal(mesh: jax.sharding.Mesh) -> None:
    kernel = partial(chunked_log_probs, axis_name="vocab")
    whole = jax.shard_map(kernel, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(ValueError, match="does not vary over mesh axis 'vocab'"):
        whole(*draw(0)[:4])


if __name__ == "__main__":
    mesh = jax.make_mesh((2, 4), ("data", "vocab"), axis_types=(AxisType.Auto,) * 2)
    check_parity(mesh)
    check_bfloat16(mesh)
    check_refusal(mesh)
    print("equal")
