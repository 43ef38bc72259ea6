import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import compute_in, make_update
from ogrpo.setup.devices import make_policy_fn
from tests.learner.toy import GRADIENT, KNOBS, make_batch, make_recipe, policy_fn
from tests.learner.toy import make_params as make_table
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow


def table_policy(params, batch, temperature):
    """The toy, of a table in any dtype."""
    return policy_fn({"table": params["table"].astype(jnp.float32)}, batch, temperature)


def descend(policy, params, rate, steps=1):
    """Plain gradient steps."""
    update = make_update(GRADIENT, make_recipe(policy_fn=policy))
    state = init_state(jax.tree.map(jnp.copy, params), optax.identity())
    for _ in range(steps):
        state, _ = update(state, make_batch(), hypers(rate, 1.0, KNOBS))
    return state.params


def test_the_update_is_that_of_float32_within_bfloat16():
    config = make_config("Qwen2")
    params, exact = make_params(config), make_policy_fn(config)
    moved = [
        jax.tree.map(lambda a, b: np.asarray(a - b), descend(policy, params, 1.0), params)
        for policy in (exact, compute_in(exact, jnp.bfloat16))
    ]
    for full, rounded in zip(*map(jax.tree.leaves, moved), strict=True):
        assert rounded.dtype == np.float32
        assert np.linalg.norm(full - rounded) < 0.05 * np.linalg.norm(full)
        assert np.any(full != rounded)


def test_steps_too_small_for_bfloat16_add_up():
    rate, half = 1e-4, compute_in(table_policy, jnp.bfloat16)
    coarse = jax.tree.map(lambda x: x.astype(jnp.bfloat16), make_table())
    master = jax.tree.map(lambda x: x.astype(jnp.float32), coarse)
    once, often = (descend(half, master, rate, steps)["table"] for steps in (1, 500))
    touched = np.unique(np.asarray(make_batch().prompt_ids[1:, -1]))
    assert np.all(once[touched] != master["table"][touched])
    np.testing.assert_array_equal(once.astype(jnp.bfloat16), coarse["table"])
    assert np.any(often.astype(jnp.bfloat16) != coarse["table"])
    without_master = descend(table_policy, coarse, rate, 500)["table"]
    np.testing.assert_array_equal(without_master, coarse["table"])
