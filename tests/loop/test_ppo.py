"""PPO through the trainer: what the critic's gradient is, what is published, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import VALUE_HEAD
from ogrpo.learner.update import gradient_of_update, weigh
from ogrpo.loop import make_collector
from ogrpo.loop.collect import insert, take
from ogrpo.loop.learn import score
from ogrpo.setup.build import find_devices, make_recipe
from tests.loop.test_loop import Run, schedule

pytestmark = pytest.mark.slow

INPUT = {"value_coef": 1.0, "discount": 1.0, "decay": 1.0}


@pytest.fixture(scope="module")
def ppo():
    return Run(algorithm="ppo", schedule=schedule(steps=2))


def batch_of(run):
    state = run.start()
    with make_collector(state, run.parts) as collector:
        state = insert(state, take(run.parts, collector, 0), run.parts)
        draw = state.buffer.sample(run.parts.schedule.prompts, seed=0)
        return state, score(state, draw, run.parts)[0]


def test_the_critics_first_gradient_is_towards_the_returns(ppo):
    """V = 0: d/d bias of the mean of c (V - R)^2 is -2 c mean R, R the discounted reward."""
    state, batch = batch_of(ppo)
    assert not np.any(batch.values)
    recipe = make_recipe(ppo.config, find_devices(ppo.config, ppo.decoder).policy_fn)
    hypers = ppo.parts.method.hypers_at(0, 1.0, 0)
    knobs = {**hypers.knobs, **{name: jnp.float32(x) for name, x in INPUT.items()}}
    hypers = hypers._replace(knobs=knobs)
    weighed = weigh(batch, recipe, hypers)
    grads, _ = jax.jit(lambda s: gradient_of_update(s, weighed, hypers, recipe))(state.train)
    mask, rewards = np.asarray(batch.active_mask), np.asarray(batch.rewards)
    mean = (rewards[..., None] * mask).sum() / mask.sum()
    assert mean > 0
    np.testing.assert_allclose(grads[VALUE_HEAD]["bias"], -2 * mean, rtol=1e-5)


def test_a_run_learns_values_and_publishes_none(ppo):
    *_, (state, record) = ppo.turns()
    head = state.train.params[VALUE_HEAD]
    assert np.any(head["weight"])
    assert np.any(head["bias"])
    assert VALUE_HEAD not in state.train.whole()
    assert set(ppo.params) == set(state.train.whole(state.server))
    assert np.isfinite(record["loss"])
