"""Moments in the host's memory: the same numbers, and they are back there after each update."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.config.update import Optimizer
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.memory import HOST
from ogrpo.learner.state import adam, hypers, reset
from ogrpo.learner.update import Recipe
from ogrpo.setup.devices import Devices, make_devices
from ogrpo.setup.presets import main_study
from tests.learner.toy import KNOBS, make_batch, make_recipe
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow

CONFIG = make_config(vocab_size=48)
OPTIMIZER = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
GIVEN = hypers(0.1, 0.7, KNOBS)


def made(offload) -> tuple[Devices, Recipe]:
    config = main_study(optimizer=Optimizer(offload="moments" if offload else False))
    devices = make_devices(config, CONFIG, OPTIMIZER, ())
    return devices, make_recipe(policy_fn=devices.policy_fn, offload=offload)


def updated(offload, count=2):
    devices, recipe = made(offload)
    update, state = devices.make_update(recipe), devices.init(make_params(CONFIG))
    for _ in range(count):
        state, metrics = update(state, make_batch(), GIVEN)
    return state, metrics


def lies(tree):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def check_same(found, expected):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_update_has_the_same_bits_and_puts_the_moments_back():
    found, expected = updated(True), updated(False)
    check_same(found, expected)
    assert lies(found[0].opt_state) == {HOST}
    assert lies(found[0].params) == lies(expected[0].opt_state) == {"device"}


def test_a_skipped_update_and_a_reset_leave_them_there():
    devices, recipe = made(True)
    state = devices.init(make_params(CONFIG))
    broken = make_batch()._replace(rewards=jnp.full((4, 3), jnp.inf).at[0, 0].set(0.0))
    state, metrics = devices.make_update(recipe)(state, broken, GIVEN)
    assert metrics["skipped"] == 1
    assert lies(state.opt_state) == lies(reset(OPTIMIZER)(state).opt_state) == {HOST}


def test_a_checkpoint_brings_them_back_to_either_memory(tmp_path):
    state = updated(True)[0]
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, {})
        for offload, kind in ((True, HOST), (False, "device")):
            like = made(offload)[0].shapes(make_params(CONFIG))
            restored = checkpoints.restore(1, replace(like, frozen=()))[0]
            check_same(restored, state)
            assert lies(restored.opt_state) == {kind}


def test_a_platform_without_such_memory_is_refused(monkeypatch):
    class Bare:
        platform, device_kind = "cpu", "made here"

        def addressable_memories(self):
            return []

    monkeypatch.setattr(jax, "devices", lambda: [Bare()])
    with pytest.raises(
        ValueError, match=r"offload asks for pinned_host.*\(cpu: made here\) has no"
    ):
        made(True)
