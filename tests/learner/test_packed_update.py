"""An update on packed batches is the update on padded ones: weights, metrics, trust region."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.batch import Batch, take
from ogrpo.core import aggregate
from ogrpo.core.trust_region import dual_penalty
from ogrpo.learner.examine import make_noise
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import join_frozen, make_step, make_update, split_frozen
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch, to_device
from ogrpo.setup.devices import make_policy_fn
from tests.learner.toy import GRADIENT, make_recipe
from tests.learner.toy import make_params as toy_params
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow

KNOBS = {"eps_low": 0.2, "eps_high": 0.3, "beta": 0.1}
CONFIG = make_config()
N, G, P, T = 4, 3, 5, 6


def make_groups(seed=0, n=N, longest=T) -> Batch:
    """Groups with empty completions among them, and rewards of which some groups' are equal."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, (n, G))
    rewards = rng.integers(0, 2, (n, G)).astype(np.float32)
    rewards[0], rewards[1, :2] = 1.0, (0.0, 1.0)
    return Batch(
        prompt_ids=rng.integers(0, 11, (n, P)).astype(np.int32),
        prompt_mask=np.arange(P) < rng.integers(1, P + 1, n)[:, None],
        completion_ids=rng.integers(0, 11, (n, G, T)).astype(np.int32),
        completion_mask=np.arange(T) < lengths[..., None],
        loss_mask=np.arange(T) < lengths[..., None],
        behavior_log_probs=rng.normal(-2.4, 0.3, (n, G, T)).astype(np.float32),
        rewards=rewards,
        policy_versions=np.arange(n * G, dtype=np.int32).reshape(n, G),
    )


def scored(batch, policy_fn):
    """With pi_k and pi_ref, in the batch's own layout."""
    score = jax.jit(policy_fn)
    for name, seed in (("proximal_log_probs", 1), ("ref_log_probs", 2)):
        found = score(make_params(CONFIG, seed), batch, jnp.float32(0.7)).log_probs
        batch = batch._replace(**{name: found})
    return batch


@cache
def updated(*, packed, microbatches=1, skip=False):
    """The state and the metrics after one update, with pi_k and pi_ref scored in the same way."""
    packer = Packer(microbatches, skip) if packed else None
    batch = to_device(make_batch(make_groups(), packer, for_update=True).batch)
    policy_fn = make_policy_fn(CONFIG)
    batch = scored(batch, policy_fn)
    region_fn = partial(dual_penalty, delta=0.01, rate=0.5, initial=0.25)
    recipe = make_recipe(
        policy_fn=policy_fn,
        reduction=aggregate.group_total,
        microbatches=microbatches,
        packed=packed,
        skip_zero_variance=skip,
        region_fn=region_fn,
    )
    state = init_state(make_params(CONFIG), optax.identity(), region=jnp.float32(0.25))
    return make_update(GRADIENT, recipe)(state, batch, hypers(0.1, 0.7, KNOBS))


def check_equal(found, expected, *, atol=2e-6):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert ours.dtype == theirs.dtype
        ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_state_and_metrics_are_those_of_the_padded_update(microbatches):
    check_equal(updated(packed=True, microbatches=microbatches), updated(packed=False))


def test_groups_left_out_change_nothing_but_what_metrics_are_of():
    packed, metrics = updated(packed=True, skip=True)
    check_equal(packed, updated(packed=False)[0])
    # Cut into groups, the padded update leaves out the same ones: metrics are of the others.
    check_equal(metrics, updated(packed=False, skip=True, microbatches=N)[1])


def small_ids(groups):
    """Tokens that the toy policy knows."""
    return groups._replace(
        prompt_ids=groups.prompt_ids % 5, completion_ids=groups.completion_ids % 5
    )


def test_a_batch_of_silent_groups_alone_changes_nothing():
    groups = small_ids(make_groups())
    equal = groups._replace(rewards=0 * groups.rewards)
    made = make_batch(equal, Packer(2, True), for_update=True)
    assert made.shape is not None
    assert (made.shape.predictors, made.shape.others) == (1, 4)  # the lowest rungs
    recipe = make_recipe(packed=True, skip_zero_variance=True)
    state, metrics = make_update(GRADIENT, recipe)(
        init_state(toy_params(), optax.identity()), made.batch, hypers(0.1, 0.7, KNOBS)
    )
    check_equal(state.params, toy_params(), atol=0)
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["ess"] == metrics["zero_variance"] == 1


def test_groups_are_left_out_of_updates_alone():
    left, kept = (
        make_batch(make_groups(), Packer(1, True), for_update=wanted) for wanted in (True, False)
    )
    assert left.shape is not None
    assert kept.shape is not None
    assert left.shape.tokens < kept.shape.tokens
    assert left.shape.groups < kept.shape.groups == N


def test_what_a_batch_was_made_from_is_in_its_order():
    groups = make_groups(n=8)
    made = make_batch(groups, Packer(4, False), for_update=True)
    order = made.batch.policy_versions[:, 0] // G
    assert sorted(order) == list(range(8))
    assert list(order) != sorted(order)
    jax.tree.map(
        np.testing.assert_array_equal, made.batch._replace(packing=None), take(groups, order)
    )


def test_the_noise_of_a_gradient_is_measured_on_the_padded_batch():
    groups, noise = make_groups(), []
    for packer in (None, Packer(1, False)):
        batch = to_device(make_batch(small_ids(groups), packer, for_update=True).batch)
        spread = make_noise(make_recipe(packed=packer is not None))
        state = init_state(toy_params(), optax.identity())
        noise.append(spread(state, batch, hypers(0.1, 0.7, KNOBS)))
    check_equal(*noise)


def test_a_program_for_each_shape_and_no_more():
    jitted = jax.jit(split_frozen(make_step(GRADIENT, make_recipe(packed=True))))
    update = join_frozen(jitted)
    state, shapes = init_state(toy_params(), optax.identity()), set()
    for seed in range(200):
        groups = make_groups(seed, n=16)
        made = make_batch(small_ids(groups), Packer(1, False), for_update=True)
        shapes.add(made.shape)
        state, _ = update(state, to_device(made.batch), hypers(0.1, 0.7, KNOBS))
    assert jitted._cache_size() == len(shapes)
    assert len(shapes) <= 16


@pytest.mark.parametrize("packed", [False, True])
def test_recipe_and_batch_must_agree_on_packing(packed):
    made = make_batch(make_groups(), None if packed else Packer(1, False), for_update=True)
    step = make_step(GRADIENT, make_recipe(packed=packed))
    with pytest.raises(ValueError, match=f"packed is {packed}.*has {'no' if packed else 'a'} pack"):
        step(init_state(toy_params(), optax.identity()), made.batch, hypers(0.1, 0.7, KNOBS))


def test_groups_are_left_out_of_packed_batches_without_microbatches():
    make_step(GRADIENT, make_recipe(packed=True, skip_zero_variance=True))
    with pytest.raises(ValueError, match=r"more than one microbatch.* 1, or packed batches"):
        make_step(GRADIENT, make_recipe(skip_zero_variance=True))
