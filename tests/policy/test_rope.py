import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.policy import RopeScaling
from ogrpo.policy.attention import inverse_frequencies, rotate, rotation
from tests.policy.tiny import make_config


def test_rotation_is_multiplication_by_a_unit_complex_number():
    config = make_config(head_dim=6, rope_theta=100.0)
    positions = np.array([[0, 1, 5]], np.int32)
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 6)).astype(np.float32)
    turned = rotate(jnp.asarray(x), rotation(config, jnp.asarray(positions)))
    angles = positions[..., None] * 100.0 ** -np.array([0.0, 1 / 3, 2 / 3])
    expected = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)[:, :, None]
    np.testing.assert_allclose(turned[..., :3], expected.real, atol=1e-6)
    np.testing.assert_allclose(turned[..., 3:], expected.imag, atol=1e-6)


def test_scores_depend_on_distance_alone():
    config = make_config(head_dim=8)
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def score(query_position, key_position):
        turned = [
            rotate(x, rotation(config, jnp.full((1, 1), at, jnp.int32)))
            for x, at in ((query, query_position), (key, key_position))
        ]
        return float(jnp.sum(turned[0] * turned[1]))

    assert score(7, 3) == pytest.approx(score(4, 0), abs=1e-5)
    assert score(7, 3) != pytest.approx(score(3, 7), abs=1e-2)


def test_dtype_is_kept():
    x = jnp.ones((1, 1, 1, 4), jnp.bfloat16)
    turn = rotation(make_config(), jnp.ones((1, 1), jnp.int32))
    assert rotate(x, turn).dtype == jnp.bfloat16
    assert turn[0].dtype == jnp.float32


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones():
    scaling = RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128
    )
    # Wavelengths 2 pi 10^i = 6.3, 63, 628, 6283 against limits 128/4 = 32 and 128/1 = 128.
    config = make_config(head_dim=8, rope_scaling=scaling)
    plain = 10.0 ** -np.arange(4)
    turns = 128 / (2 * np.pi * 10)
    blend = (turns - 1) / (4 - 1)
    expected = [plain[0], (1 - blend) * plain[1] / 8 + blend * plain[1], *(plain[2:] / 8)]
    np.testing.assert_allclose(inverse_frequencies(config), expected, rtol=1e-5)
