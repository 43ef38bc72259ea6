"""An update whose numbers are not finite is not taken: the state stays as it was, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.learner import state as learner_state
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import jit_step, loss_inputs, make_update
from tests.learner import toy
from tests.learner.toy import ADAM, KNOBS, REGION, bits, make_batch, make_spec, make_state

SHAPES = {
    "plain": {},
    "microbatched": {"microbatches": 2},
    "groups left out": {"microbatches": 4, "skip_zero_variance": True},
    "trust region": {"region_fn": REGION},
    "large": {},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_that_is_not_finite_leaves_the_state_and_the_next_one_is_taken(shape, monkeypatch):
    monkeypatch.setattr(learner_state, "LARGE", 0 if shape == "large" else learner_state.LARGE)
    changes, hyper = SHAPES[shape], hypers(0.1, 1.0, KNOBS)
    update = make_update(ADAM, make_spec(**changes))
    state, _ = update(make_state(ADAM, **changes), make_batch(seed=2), hyper)  # moments to lose
    before, updates = bits(state), int(state.updates)
    for value in (jnp.inf, -jnp.inf):
        poisoned = make_batch()
        poisoned = poisoned._replace(rewards=poisoned.rewards.at[1, 0].set(value))
        state, metrics = update(state, poisoned, hyper)
        assert metrics["skipped"] == 1
        assert not np.isfinite(metrics["loss"])
        assert bits(state) == before
    state, metrics = update(state, make_batch(), hyper)
    assert metrics["skipped"] == 0
    assert int(state.updates) == updates + 1
    undisturbed, _ = update(make_state(ADAM, **changes), make_batch(seed=2), hyper)
    assert bits(state) == bits(update(undisturbed, make_batch(), hyper)[0])


def test_a_completion_that_was_not_judged_leaves_no_trace_in_the_update():
    batch, hyper = make_batch(), hypers(0.1, 1.0, KNOBS)
    batch = batch._replace(rewards=batch.rewards.at[1].set(jnp.array([jnp.nan, 1.0, 0.0])))
    inputs = loss_inputs(batch, make_spec(), hyper)
    np.testing.assert_array_equal(inputs.advantages[1], [0.0, 0.5, -0.5])
    assert not inputs.mask[1, 0].any()
    _, metrics = toy.updated(batch, hyper, optimizer=ADAM)
    assert metrics["skipped"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


def refused(optimizer, rate, **changes):
    """The metrics of an update of a finite loss that is not taken."""
    state = make_state(optimizer)
    before = bits(state)
    update = make_update(optimizer, make_spec(**changes))
    state, metrics = update(state, make_batch(), hypers(rate, 1.0, KNOBS))
    assert metrics["skipped"] == 1
    assert np.isfinite(metrics["loss"])
    assert bits(state) == before
    return metrics


def test_a_gradient_that_is_not_finite_is_refused_though_the_loss_is():
    def policy_fn(params, batch, temperature):
        shift = jnp.sqrt(params["table"][0, 0] * 0)  # 0, with the slope infinity * 0
        return toy.policy_fn({"table": params["table"] + shift}, batch, temperature)

    assert not np.isfinite(refused(ADAM, 0.1, policy_fn=policy_fn)["grad_norm"])


@pytest.mark.parametrize("large", [0, learner_state.LARGE])
@pytest.mark.parametrize("factor", [1e6, float("nan")])
def test_weights_that_overflow_in_the_step_itself_are_refused(factor, large, monkeypatch):
    monkeypatch.setattr(learner_state, "LARGE", large)
    steep = optax.chain(optax.trace(0.9), optax.scale(factor))
    assert np.isfinite(refused(steep, 3e38)["grad_norm"])


def test_the_guard_holds_no_second_copy_of_weights_or_moments(monkeypatch):
    monkeypatch.setattr(learner_state, "LARGE", 0)
    params = {"table": jax.ShapeDtypeStruct((4096, 512), jnp.float32)}

    def policy_fn(params, batch, temperature):
        return toy.policy_fn({"table": params["table"][: toy.V, : toy.V]}, batch, temperature)

    state = jax.eval_shape(partial(init_state, optimizer=ADAM), params)
    step = jit_step(ADAM, make_spec(policy_fn=policy_fn))
    arguments = (state, (), make_batch(), hypers(0.1, 1.0, KNOBS))
    compiled = step.lower(*arguments).compile()
    analysis, size = compiled.memory_analysis(), 4 * 4096 * 512
    assert analysis.alias_size_in_bytes >= 3 * size  # weights and both moments are changed in place
    assert analysis.temp_size_in_bytes < 1.5 * size  # the gradient
