"""`rec`: what is left out on fresh samples is what another method's run says already."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.grid.variants import brief, changed
from experiments.rec.study import METHODS, OFFLINE, ON_POLICY, SCHEDULES, RecStudy
from ogrpo.config.method import algorithm, knobs
from ogrpo.core.aggregate import mean
from tests.core.cases import problem

pytestmark = pytest.mark.slow


def gradient(name):
    """Returns the gradient of a method's loss on fresh samples with respect to the tokens' log-probs."""
    config = changed(brief(), METHODS[name])
    method, values = algorithm(config), knobs(config)
    log_probs, batch, _ = problem()
    fresh = batch._replace(behavior_log_probs=log_probs, proximal_log_probs=log_probs)
    rewards = jnp.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    loss = lambda x: mean(method(x, fresh, rewards, values, jax.random.key(1)))  # noqa: E731
    return np.asarray(jax.grad(loss)(log_probs)).ravel()


def cosine(first, second):
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_method_left_out_on_fresh_samples_has_the_direction_of_the_one_named(name):
    assert cosine(gradient(name), gradient(ON_POLICY[name])) == pytest.approx(1, abs=1e-5)


def test_those_that_are_run_on_fresh_samples_differ():
    plain = gradient("REINFORCE")
    for name in ("GRPO", "AsymRE", "RED-Drop", "RED-Weight", "RAFT", "DPO"):
        assert cosine(gradient(name), plain) < 0.999


def test_offline_runs_take_as_many_updates_as_the_others_of_the_initial_policys_samples():
    study = RecStudy(methods=("REINFORCE",))
    places = {place.coordinates["schedule"]: place.config.schedule for place in study.places()}
    assert {when: plan.updates for when, plan in places.items()} == dict.fromkeys(SCHEDULES, 60)
    assert places[OFFLINE].offline
    assert not places[OFFLINE].collects(places[OFFLINE].warmup)
