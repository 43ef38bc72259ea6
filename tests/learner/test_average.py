"""The mean of the weights that is evaluated: its weights are powers of the decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner.state import TrainState, make_average


@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_the_mean_weighs_each_update_by_its_age_and_skips_what_was_skipped(decay):
    weights = np.array([[3.0, -1.0], [5.0, 2.0], [5.0, 2.0], [-4.0, 0.5]], np.float32)
    taken = [True, True, False, True]  # the third was skipped and left the weights
    average_fn, mean, count = make_average(decay), {"w": jnp.array([100.0, 100.0])}, 0
    for theta, was in zip(weights, taken, strict=True):
        count += was
        state = TrainState({"w": jnp.asarray(theta)}, (), jnp.int32(count))
        mean = average_fn(mean, state, jnp.float32(not was))
    kept = weights[[0, 1, 3]]
    ages = np.array([2, 1, 0])
    shares = decay**ages / np.sum(decay**ages)
    np.testing.assert_allclose(jax.device_get(mean["w"]), shares @ kept, rtol=1e-6)
