"""Smaller moments: what they hold, what they make of a gradient, where they lie."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner import sharding
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.state import adam, guarded, init_state
from ogrpo.policy.params import param_axes
from tests.learner.toy import bits
from tests.policy.tiny import make_config, make_params

B1, B2, EPS = 0.9, 0.98, 1e-8
make = partial(adam, b1=B1, b2=B2, eps=EPS, weight_decay=0.0, max_grad_norm=1e9)


def directions(moments, gradients):
    """Returns the optimizer's direction for each gradient in turn."""
    optimizer = make(moments=moments)
    params = jax.tree.map(jnp.zeros_like, gradients[0])
    state, directions_taken = optimizer.init(params), []
    for gradient in gradients:
        with jax.numpy_dtype_promotion("standard"):
            update, state = optimizer.update(gradient, state, params)
        directions_taken.append(update)
    return directions_taken


def gradients(count=4):
    rng = np.random.default_rng(0)
    return [
        {"w": jnp.asarray(rng.normal(size=(129, 136)), jnp.float32), "b": jnp.ones((80, 136)) * n}
        for n in range(1, count + 1)
    ]


def test_factored_moments_are_those_of_the_paper():
    """Shazeer & Stern 2018, algorithm 2, Adam's correction of the bias for its decay."""
    rows, columns, first = np.zeros(129), np.zeros(136), np.zeros((129, 136))
    pairs = zip(directions("factored", gradients()), gradients(), strict=True)
    for t, (actual, gradient) in enumerate(pairs, start=1):
        g = np.asarray(gradient["w"], float)
        rows = B2 * rows + (1 - B2) * (g**2).mean(1)
        columns = B2 * columns + (1 - B2) * (g**2).mean(0)
        second = np.outer(rows, columns) / rows.mean() / (1 - B2**t)
        first = B1 * first + (1 - B1) * g / np.sqrt(second)
        # The first moments are bfloat16, of 8 bits.
        np.testing.assert_allclose(actual["w"], first / (1 - B1**t), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("moments", ["bfloat16", "factored"])
def test_they_are_adams_but_for_rounding_where_nothing_is_lost(moments):
    """Squares of rank 1 are their factors; the vectors of 80 layers have none."""
    rng = np.random.default_rng(1)
    outer = np.outer(rng.normal(size=129), rng.normal(size=136))
    steady = [{"w": jnp.asarray(outer, jnp.float32), "b": jnp.eye(80, 136) + 0.1}] * 4
    actual, expected = directions(moments, steady), directions("full", steady)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0.01), actual, expected)


@pytest.mark.parametrize("moments", ["full", "bfloat16", "factored"])
def test_they_lie_with_their_parameters_and_come_back_from_a_checkpoint(moments, tmp_path):
    config, optimizer = make_config(vocab_size=48), make(moments=moments)
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    params = make_params(config)
    to = sharding.make_layout(param_axes(config), params, optimizer, mesh)
    state = sharding.init_placed(params, optimizer, to)
    assert bits(state) == bits(init_state(params, optimizer))
    saved = jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, saved, {})
        assert bits(checkpoints.restore(1, state)[0]) == bits(saved)


def test_the_step_of_a_large_model_holds_less_with_factored_moments(monkeypatch):
    """XLA's plan of the guarded step, arguments and temporaries together, over the weights' bytes."""
    monkeypatch.setattr("ogrpo.learner.state.LARGE", 1)
    shapes = {f"w{n}": jax.ShapeDtypeStruct((8, 512, 1024), jnp.float32) for n in range(4)}

    def held(moments):
        optimizer = make(moments=moments)

        def step(state, grads):
            return guarded(state, grads, optimizer, jnp.float32(1e-3), jnp.bool_(True))

        state = jax.eval_shape(partial(init_state, optimizer=optimizer), shapes)
        compiled = jax.jit(step, donate_argnums=0).lower(state, shapes).compile()
        analysis = compiled.memory_analysis()
        in_all = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
        return in_all / sum(4 * leaf.size for leaf in shapes.values())

    assert held("factored") < 0.95 * held("full")
