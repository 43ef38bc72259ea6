"""`rec`: what is left out on fresh samples is what another method's run says already."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.grid.variants import brief, changed
from experiments.rec.study import METHODS, OFFLINE, ON_POLICY, SCHEDULES, RecStudy
from ogrpo.config.method import algorithm, knobs
from ogrpo.core.aggregate import mean
from ogrpo.core.objectives import TokenBatch

pytestmark = pytest.mark.slow


def gradient(name):
    """Returns the gradient of a method's loss on fresh samples with respect to the tokens' log-probs."""
    config = changed(brief(), METHODS[name])
    method, values = algorithm(config), knobs(config)
    rng = np.random.default_rng(0)
    log_probs = jnp.asarray(rng.normal(-2.0, 0.5, (4, 8, 6)), jnp.float32)
    rewards = jnp.asarray(rng.integers(0, 2, (4, 8)), jnp.float32)
    reference = log_probs + jnp.asarray(rng.normal(0.0, 0.5, log_probs.shape), jnp.float32)
    mask = jnp.ones(log_probs.shape, bool)
    batch = TokenBatch(log_probs, mask, log_probs, log_probs, reference)  # advantages are replaced
    key = jax.random.key(1)
    loss = lambda x: mean(method(x, batch, rewards, values, key))  # noqa: E731
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
