"""Any Optax optimizer descends, and no learning rate is quietly without effect."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.learner.sharding import init_placed, make_layout, make_mesh, shard_update
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import gradient, make_update, weigh
from ogrpo.policy.params import Axes, Axis
from tests.learner.toy import GRADIENT, KNOBS, V, make_batch, make_params, make_recipe, updated

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(1e-3),
    "clipped adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "scheduled lion": optax.lion(optax.linear_schedule(1e-3, 0.0, 100)),
    "injected": optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
}


def one_update(optimizer, rate):
    return updated(given=hypers(rate, 1.0, KNOBS), optimizer=optimizer)[0]


def test_its_own_step_size_is_what_it_takes():
    batch, recipe, params = make_batch(), make_recipe(), make_params()
    given = hypers(None, 1.0, KNOBS)
    of = jax.jit(lambda p: gradient(p, weigh(batch, recipe, given), given, recipe))
    grads, evidence = of(params)
    expected = params["table"] - 0.1 * grads["table"] / evidence.total.count
    ours = one_update(optax.sgd(0.1), None).params["table"]
    np.testing.assert_allclose(ours, expected, atol=1e-7)


def test_a_learning_rate_that_can_be_set_is_the_updates_and_compiles_once():
    injected = optax.chain(optax.inject_hyperparams(optax.sgd)(learning_rate=7.0))
    update = make_update(injected, make_recipe())
    for rate in (0.1, 0.3):
        after, _ = update(
            init_state(make_params(), injected), make_batch(), hypers(rate, 1.0, KNOBS)
        )
        expected = one_update(optax.sgd(rate), None)
        np.testing.assert_allclose(after.params["table"], expected.params["table"], atol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "rate", "message"),
    [
        (optax.adam(1e-3), 0.1, "has a step size, which.*give None.*inject_hyperparams"),
        (
            optax.inject_hyperparams(optax.sgd)(learning_rate=optax.constant_schedule(1.0)),
            0.1,
            "has a step size, which",
        ),
        (GRADIENT, None, "is a Direction.*give a learning rate"),
    ],
)
def test_a_learning_rate_without_effect_is_refused_and_a_missing_one_asked_for(
    optimizer, rate, message
):
    with pytest.raises(ValueError, match=message):
        one_update(optimizer, rate)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (OPTIMIZERS["injected"], 0.01),
        (OPTIMIZERS["clipped adamw"], None),
        (adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0), 0.01),
    ],
)
def test_a_mesh_takes_the_same_optimizers(optimizer, rate):
    axes = {"table": Axes((Axis("vocab", V), Axis("embed", V)))}
    to = make_layout(axes, make_params(), optimizer, make_mesh(data=1, fsdp=1, tensor=1))
    state = init_placed(make_params(), optimizer, to)
    update = shard_update(optimizer, make_recipe(), to)
    after, _ = update(state, make_batch(), hypers(rate, 1.0, KNOBS))
    alone = one_update(optimizer, rate)
    jax.tree.map(np.testing.assert_array_equal, after, alone)
    assert not jnp.array_equal(after.params["table"], make_params()["table"])
