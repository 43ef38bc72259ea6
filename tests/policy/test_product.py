"""Products of rows with a weight, whichever operand goes left: against float64, gradients too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.policy.decoder import product

# Above and below what goes left: 256 rows, weights of 65,536 entries.
ROWS = (1, 7, 256, 257, 600)
WEIGHTS = ((300, 320), (31, 17))
CLOSE = ((jnp.float32, 1e-6), (jnp.bfloat16, 8e-3))


# Pairwise: each number of rows with each shape and each type, each shape with each type.
@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "close"),
    [
        (rows, WEIGHTS[(place + narrow) % 2], *CLOSE[narrow])
        for place, rows in enumerate(ROWS)
        for narrow in range(2)
    ],
)
def test_value_and_gradients_are_those_of_float64(rows, shape, dtype, close):
    rng, sizes = np.random.default_rng(rows), ((rows, shape[1]), shape, (rows, shape[0]))
    x, weight, cotangent = (jnp.asarray(rng.normal(size=size), dtype) for size in sizes)
    y, pull = jax.vjp(jax.jit(product), x, weight)
    d_x, d_weight = pull(cotangent)
    wide_x, wide_weight, wide = (np.asarray(a, np.float64) for a in (x, weight, cotangent))
    for actual, expected in (
        (y, wide_x @ wide_weight.T),
        (d_x, wide @ wide_weight),
        (d_weight, wide.T @ wide_x),
    ):
        assert actual.dtype == dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=close * scale)
