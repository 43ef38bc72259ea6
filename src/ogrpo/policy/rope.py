"""Rotary position embedding: each pair of coordinates turns by an angle, linear in position."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.policy.config import DecoderConfig, RopeScaling


def inverse_frequencies(config: DecoderConfig) -> NDArray[np.float32]:
    """Angle per position of each pair, theta^(-2i/D), stretched if the config says so.

    Su et al. 2021, "RoFormer", section 3.2.2.

    Returns:
      float32 [D/2].
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    plain = (1.0 / config.rope_theta**exponents).astype(np.float32)
    return plain if config.rope_scaling is None else _llama3(plain, config.rope_scaling)


def _llama3(plain: NDArray[np.float32], scaling: RopeScaling) -> NDArray[np.float32]:
    """Divide long wavelengths by `factor`, keep short ones, blend linearly in between.

    Llama 3.1's context extension (Grattafiori et al. 2024, "The Llama 3 Herd of Models").
    """
    turns = scaling.original_max_positions * plain / (2 * np.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / width, 0.0, 1.0)
    return (keep * plain + (1 - keep) * plain / scaling.factor).astype(np.float32)


def rotation(config: DecoderConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin of position * frequency, float32 [..., D/2], for int positions [...]."""
    angles = positions.astype(jnp.float32)[..., None] * jnp.expand_dims(
        inverse_frequencies(config), tuple(range(positions.ndim))
    )
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turn each pair (x_i, x_{i + D/2}) by its angle, in float32.

    Args:
      x: [N, S, H, D], any float dtype; the result has the same.
      turn: cos and sin [N, S, D/2].
    """
    cos, sin = (part[:, :, None, :] for part in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
