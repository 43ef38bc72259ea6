"""Updates of a part of the policy's parameters, the others staying as they are."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner.checkpoint import content_hash
from ogrpo.learner.state import adam, hypers, init_state, join
from ogrpo.learner.update import make_update
from tests.learner import toy
from tests.learner.toy import make_batch

GIVEN = hypers(0.5, 0.9, toy.KNOBS)


def policy_fn(params, batch, temperature):
    """A table W + B, of which the B beside it is trained."""
    adapter = params["own"]
    return toy.policy_fn({"table": adapter["weight"] + adapter["beside"]}, batch, temperature)


def pieces():
    rng = np.random.default_rng(0)
    weight, beside = (jnp.asarray(rng.normal(size=(toy.V, toy.V)), jnp.float32) for _ in range(2))
    return {"own": {"beside": beside}}, {"own": {"weight": weight}, "scale": jnp.float32(2)}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_an_update_moves_what_is_trained_as_if_that_were_all(microbatches):
    spec, batch = toy.make_spec(policy_fn=policy_fn, microbatches=microbatches), make_batch()
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
    trained, frozen = pieces()

    def alone_fn(params, batch, temperature):
        return policy_fn(join(params, frozen), batch, temperature)

    alone = make_update(optimizer, spec._replace(policy_fn=alone_fn))
    some = init_state(trained, optimizer, frozen=frozen)
    plain, before = init_state(pieces()[0], optimizer), some.frozen
    update = make_update(optimizer, spec)
    for _ in range(3):
        some, metrics = update(some, batch, GIVEN)
        plain, expected = alone(plain, batch, GIVEN)
    assert np.max(np.abs(some.params["own"]["beside"] - pieces()[0]["own"]["beside"])) > 0.1
    same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(same, replace(some, frozen=()), plain)
    jax.tree.map(same, metrics, expected)
    assert len(jax.tree.leaves(some.opt_state)) == len(jax.tree.leaves(plain.opt_state))
    # An update that is skipped leaves the state as it is.
    taken = toy.bits(some)
    some, metrics = update(some, batch._replace(rewards=batch.rewards.at[1, 0].set(jnp.inf)), GIVEN)
    assert metrics["skipped"] == 1
    assert toy.bits(some) == taken
    # Others go on using the frozen arrays: they are the same ones, and alive.
    jax.tree.map(np.testing.assert_array_equal, before, pieces()[1])
    assert all(a is b for a, b in zip(*map(jax.tree.leaves, (some.frozen, before)), strict=True))


def test_a_hash_knows_names_shapes_dtypes_and_values():
    _, frozen = pieces()
    table = frozen["own"]["weight"]
    hashes = [
        content_hash(tree)
        for tree in (
            frozen,
            {"own": {"other": table}, "scale": jnp.float32(2)},
            {"own": {"weight": table.ravel()}, "scale": jnp.float32(2)},
            {"own": {"weight": table.at[0, 0].add(1e-3)}, "scale": jnp.float32(2)},
            {"own": {"weight": table}, "scale": jnp.int32(2)},
            {"own": {"weight": table.astype(jnp.bfloat16)}, "scale": jnp.float32(2)},
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert content_hash(jax.tree.map(jnp.copy, frozen)) == hashes[0]
    assert content_hash(()) == ""
