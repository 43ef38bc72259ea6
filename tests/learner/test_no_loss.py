"""A token outside the loss mask is seen by attention, and by nothing that the update computes.

An update of batches in which little or nothing carries loss is finite and moves nothing.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ogrpo.batch import Batch
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.learner.examine import make_noise
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import make_update
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch as arranged
from ogrpo.loop.batches import to_device
from ogrpo.setup.devices import make_policy_fn
from ogrpo.setup.imitation import make_imitate
from tests.learner import toy
from tests.learner.test_packed_update import CONFIG, check_equal, make_groups
from tests.learner.toy import GRADIENT, KNOBS, REGION, make_spec
from tests.policy.tiny import make_config, make_params

CUTS = {
    "plain": {},
    "microbatched": {"microbatches": 2},
    "groups left out": {"microbatches": 4, "skip_zero_variance": True},
    "not counted": {"count_masked": False, "region_fn": REGION},
}
N, G, T = 4, 3, 6
NEUTRAL = {
    **dict.fromkeys(("loss", "grad_norm", "chi_square", "kl/pi_mu"), 0),
    **dict.fromkeys(("ess", "ess/sequence", "ratio/tail"), 1),
}
"""Metrics of no computed group, which raise no alarm."""
GIVEN = hypers(0.1, 1.0, KNOBS)


@cache
def toy_update(cut):
    return make_update(GRADIENT, make_spec(**CUTS[cut]))


def assert_finite(metrics):
    assert metrics["skipped"] == 0
    assert {name for name, value in metrics.items() if not np.isfinite(value)} == set()


@pytest.mark.parametrize("cut", CUTS)
@settings(max_examples=25)
@example(np.ones((N, G), np.float32), np.ones((N, G, T), bool), np.ones((N, G, T), bool))
@given(
    rewards=arrays(np.float32, (N, G), elements=st.sampled_from([0.0, 1.0, -3.0])),
    loss=arrays(bool, (N, G, T)),
    there=arrays(bool, (N, G, T)),
)
def test_any_masks_and_rewards_give_a_finite_update(cut, rewards, loss, there):
    fields = {"rewards": rewards, "loss_mask": loss, "completion_mask": there}
    batch = toy.make_batch()._replace(**jax.tree.map(jnp.asarray, fields))
    state = toy.make_state(**CUTS[cut])
    after, metrics = toy_update(cut)(state, batch, GIVEN)
    assert_finite(metrics)
    carries = (loss & there).any(axis=(1, 2)) & (np.ptp(rewards, axis=1) > 0)
    if not carries.any():  # of what is left out, the KL term too
        np.testing.assert_array_equal(after.params["table"], toy.make_params()["table"])
        neutral = NEUTRAL if cut == "groups left out" else {"loss": 0, "grad_norm": 0}
        assert {name: float(metrics[name]) for name in neutral} == neutral


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_packed_batches_without_loss_move_nothing(skip):
    groups = make_groups()
    config, packer = make_config(), Packer(1, skip)
    spec = make_spec(policy_fn=make_policy_fn(config), packed=True, skip_zero_variance=skip)
    update, first = make_update(GRADIENT, spec), make_params(config)
    for rewards, loss in ((np.ones((N, G), np.float32), True), (groups.rewards, False)):
        bare = groups._replace(rewards=rewards, loss_mask=groups.loss_mask & loss)
        batch = to_device(arranged(bare, packer, for_update=True).batch)
        zeros = jnp.zeros(batch.completion_ids.shape, jnp.float32)
        batch = batch._replace(ref_log_probs=zeros, proximal_log_probs=zeros)
        state = init_state(make_params(config), optax.identity())
        after, metrics = update(state, batch, GIVEN)
        assert_finite(metrics)
        assert metrics["grad_norm"] == 0
        jax.tree.map(np.testing.assert_array_equal, after.params, first)


UNLIKE = (
    *("off_policy_grpo", "gspo", "ppo", "dpo"),  # by token, by completion, with a critic, by pair
    *("opmd_pairwise", "m2po", "clip_cov", "grpo_process"),  # by group, batch, at random, by step
)


def valued_policy_fn(params, batch, temperature):
    """The toy's, with values for those who have a critic."""
    outputs = toy.policy_fn(params, batch, temperature)
    return outputs._replace(values=jnp.sum(params["table"]) + jnp.zeros_like(outputs.log_probs))


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
def test_a_batch_without_loss_moves_no_algorithm(name):
    algorithm = ALGORITHMS[name]
    values = {"length": 6.0} if "length" in algorithm.knobs else {}
    knobs = algorithm.settings(values)
    spec = make_spec()._replace(
        algorithm=algorithm, reads=algorithm.inputs(knobs), policy_fn=valued_policy_fn
    )
    update = make_update(GRADIENT, spec)
    nothing, zeros = np.zeros((N, G, T), bool), jnp.zeros((N, G, T))
    steps = {"step_rewards": zeros, "step_ends": jnp.asarray(nothing)}
    batch = toy.make_batch()._replace(values=zeros, **steps)
    for mask in ("loss_mask", "completion_mask"):
        bare = batch._replace(**{mask: jnp.asarray(nothing)})
        after, metrics = update(toy.make_state(), bare, hypers(0.1, 1.0, knobs))
        assert_finite(metrics)
        np.testing.assert_array_equal(after.params["table"], toy.make_params()["table"])


def masked(batch: Batch, share: float = 0.6, seed: int = 3) -> Batch:
    """Random tokens without loss, which have NaN; of a group with variance a whole completion."""
    mask = np.random.default_rng(seed).random(batch.completion_mask.shape) < share
    mask[1, 2] = False
    batch = batch._replace(loss_mask=jnp.asarray(mask))
    names = ("behavior_log_probs", "proximal_log_probs", "ref_log_probs")
    noise = {x: jnp.where(batch.active_mask, getattr(batch, x), jnp.nan) for x in names}
    return batch._replace(**noise)


def cut_out(batch: Batch) -> Batch:
    """The same batch without the tokens that carry no loss, the others moved up to the left."""
    active = np.asarray(batch.active_mask)
    order = np.argsort(~active, axis=-1, kind="stable")
    mask = jnp.asarray(np.take_along_axis(active, order, axis=-1))

    def moved(x):
        return jnp.where(mask, jnp.take_along_axis(x, order, axis=-1), 0)

    names = ("completion_ids", "behavior_log_probs", "proximal_log_probs", "ref_log_probs")
    tokens = {name: moved(getattr(batch, name)) for name in names}
    return batch._replace(**tokens, completion_mask=mask, loss_mask=mask)


# Each reduction, with each normaliser in turn.
@pytest.mark.parametrize(
    ("total", "count_masked"), [(total, bool(n % 2)) for n, total in enumerate(toy.TOTALS)]
)
def test_an_update_is_that_of_the_batch_without_those_tokens(total, count_masked):
    """The toy policy has no context, so that tokens can be cut out: weights and every metric."""
    batch = masked(toy.make_batch(n=6))
    how = {"reduction": toy.TOTALS[total], "count_masked": count_masked}
    actual, expected = toy.updated(batch, GIVEN, **how), toy.updated(cut_out(batch), GIVEN, **how)
    check_equal(actual, expected)
    plain = toy.updated(toy.make_batch(n=6), GIVEN, **how)[0].params["table"]
    assert np.abs(np.asarray(plain - actual[0].params["table"])).max() > 1e-3


def test_the_noise_of_a_gradient_and_imitation_go_by_the_mask():
    batch = masked(toy.make_batch(n=6))
    spread, imitate = make_noise(make_spec()), make_imitate(GRADIENT, toy.policy_fn)
    for one, other in (
        [spread(toy.make_state(), each, GIVEN) for each in (batch, cut_out(batch))],
        [imitate(toy.make_state(), each, jnp.float32(0.1)) for each in (batch, cut_out(batch))],
    ):
        check_equal(one, other)


def test_attention_sees_a_token_without_loss():
    groups = make_groups()
    mask = groups.completion_mask.copy()
    mask[..., 0] = False
    other = groups.completion_ids.copy()
    other[..., 0] = (other[..., 0] + 1) % 11
    params, policy = make_params(CONFIG), jax.jit(make_policy_fn(CONFIG))
    masked = groups._replace(loss_mask=mask)
    first, second = (
        np.asarray(policy(params, to_device(one), jnp.float32(1)).log_probs)
        for one in (masked, masked._replace(completion_ids=other))
    )
    later = groups.completion_mask[..., 1:]
    assert np.all(first[..., 1:][later] != second[..., 1:][later])
    kept = to_device(groups)
    np.testing.assert_array_equal(first, policy(params, kept, jnp.float32(1)).log_probs)
