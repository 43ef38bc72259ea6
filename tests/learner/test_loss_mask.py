"""A token outside the loss mask is seen by attention, and by nothing that the update computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import Batch
from ogrpo.learner.examine import make_noise
from ogrpo.learner.state import hypers
from ogrpo.loop.batches import to_device
from ogrpo.setup.devices import make_policy_fn
from ogrpo.setup.imitation import make_imitate
from tests.learner.test_packed_update import CONFIG, check_equal, make_groups
from tests.learner.toy import GRADIENT, KNOBS, TOTALS, make_recipe, make_state, policy_fn, updated
from tests.learner.toy import make_batch as toy_batch
from tests.policy.tiny import make_params as decoder_params

GIVEN = hypers(0.1, 1.0, KNOBS)


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
    ("total", "count_masked"), [(total, bool(n % 2)) for n, total in enumerate(TOTALS)]
)
def test_an_update_is_that_of_the_batch_without_those_tokens(total, count_masked):
    """The toy policy has no context, so that tokens can be cut out: weights and every metric."""
    batch = masked(toy_batch(n=6))
    how = {"reduction": TOTALS[total], "count_masked": count_masked}
    actual, expected = updated(batch, GIVEN, **how), updated(cut_out(batch), GIVEN, **how)
    check_equal(actual, expected)
    plain = updated(toy_batch(n=6), GIVEN, **how)[0].params["table"]
    assert np.abs(np.asarray(plain - actual[0].params["table"])).max() > 1e-3


def test_the_noise_of_a_gradient_and_imitation_go_by_the_mask():
    batch = masked(toy_batch(n=6))
    spread, imitate = make_noise(make_recipe()), make_imitate(GRADIENT, policy_fn)
    for one, other in (
        [spread(make_state(), each, GIVEN) for each in (batch, cut_out(batch))],
        [imitate(make_state(), each, jnp.float32(0.1)) for each in (batch, cut_out(batch))],
    ):
        check_equal(one, other)


def test_attention_sees_a_token_without_loss():
    groups = make_groups()
    mask = groups.completion_mask.copy()
    mask[..., 0] = False
    other = groups.completion_ids.copy()
    other[..., 0] = (other[..., 0] + 1) % 11
    params, policy = decoder_params(CONFIG), jax.jit(make_policy_fn(CONFIG))
    masked = groups._replace(loss_mask=mask)
    first, second = (
        np.asarray(policy(params, to_device(one), jnp.float32(1)).log_probs)
        for one in (masked, masked._replace(completion_ids=other))
    )
    later = groups.completion_mask[..., 1:]
    assert np.all(first[..., 1:][later] != second[..., 1:][later])
    kept = to_device(groups)
    np.testing.assert_array_equal(first, policy(params, kept, jnp.float32(1)).log_probs)
