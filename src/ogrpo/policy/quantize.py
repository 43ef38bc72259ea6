"""Weights rounded to 8 bits per output channel, as servers of int8 models compute with them."""

import jax
import jax.numpy as jnp

from ogrpo.policy.decoder import Params

LEVELS = 127
MATRICES = frozenset(
    {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
        *("embed_tokens", "lm_head"),
    }
)
"""What is rounded; norms, biases and adapters stay."""


def round_to_int8(weight: jax.Array) -> jax.Array:
    """Rounds W [..., out, in] to s * k with whole k in [-127, 127] and s = max |W| / 127 of a row.

    A row is an output channel; for an embedding, a token. The error of a weight is s / 2 at most.

    >>> round_to_int8(jnp.array([[1.27, 0.004, -0.5], [0.0, 0.0, 0.0]])).round(3).tolist()[1]
    [0.0, 0.0, 0.0]
    """
    wide = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / LEVELS
    levels = jnp.round(wide / jnp.where(scale > 0, scale, 1.0))
    return (levels * scale).astype(weight.dtype)


def int8_weights(params: Params) -> Params:
    """Returns the decoder with every matrix rounded, in the dtype that it has.

    The numbers are those of an int8 server with float activations; memory and speed are not.
    """

    def rounded(path: tuple, leaf: jax.Array) -> jax.Array:
        *_, module, name = (getattr(key, "key", None) for key in path)
        return round_to_int8(leaf) if name == "weight" and module in MATRICES else leaf

    return jax.tree_util.tree_map_with_path(rounded, params)
