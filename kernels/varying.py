"""Inside `jax.shard_map`: over which mesh axes values differ."""

import jax
import jax.numpy as jnp
from jax import lax


def varying(x: jax.Array) -> frozenset[str]:
    """Mesh axes over which a value inside shard_map differs."""
    return jax.typeof(x).manual_axis_type.varying


def vary_alike(*values: jax.Array) -> list[jax.Array]:
    """All values varying over the axes of any, so that shard_map sums each one's gradient."""
    axes = frozenset[str]().union(*map(varying, values))
    return [_vary_over(value, tuple(axes - varying(value))) for value in values]


def _vary_over(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """x varying over more axes; its gradient is summed over them in float32, whatever its dtype."""
    if not axes:
        return x
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return lax.pcast(x, axes, to="varying")
    return lax.pcast(x.astype(jnp.float32), axes, to="varying").astype(x.dtype)
