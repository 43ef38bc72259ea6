"""An update on batches cut by tokens is the update on padded ones, groups being split or not."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogrpo.core import aggregate
from ogrpo.core.aggregate import AGGREGATIONS
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.core.trust_region import dual_penalty
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import gradient, make_update, weigh
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch, to_device
from ogrpo.setup.devices import make_policy_fn
from tests.learner import toy
from tests.learner.test_packed_update import (
    CONFIG,
    KNOBS,
    N,
    P,
    T,
    check_equal,
    make_groups,
    scored,
)
from tests.learner.toy import GRADIENT, make_recipe
from tests.policy.tiny import make_params

pytestmark = pytest.mark.slow

REDUCTIONS = {**AGGREGATIONS, "fixed_length": partial(aggregate.fixed_length_total, length=T)}
LEAST = P + T


def cut(groups, tokens, *, skip=False, together=1):
    made = make_batch(groups, Packer(1, skip, together, tokens), for_update=True)
    return to_device(made.batch), made.shape


@cache
def updated(*, tokens=None, reduction="group", skip=False):
    """The state and the metrics after one update, with pi_k and pi_ref scored in the same way."""
    packer = None if tokens is None else Packer(1, skip, 1, tokens)
    batch = to_device(make_batch(make_groups(), packer, for_update=True).batch)
    policy_fn = make_policy_fn(CONFIG)
    batch = scored(batch, policy_fn)
    recipe = make_recipe(
        policy_fn=policy_fn,
        reduction=REDUCTIONS[reduction],
        packed=tokens is not None,
        skip_zero_variance=skip,
        region_fn=partial(dual_penalty, delta=0.01, rate=0.5, initial=0.25),
    )
    state = init_state(make_params(CONFIG), optax.identity(), region=jnp.float32(0.25))
    return make_update(GRADIENT, recipe)(state, batch, hypers(0.1, 0.7, KNOBS))


@pytest.mark.parametrize("reduction", ["group"])
def test_state_and_metrics_are_those_of_the_padded_update(reduction):
    batch, shape = cut(make_groups(), LEAST)
    assert shape.parts > N  # groups are split
    assert shape.row <= LEAST
    check_equal(updated(tokens=LEAST, reduction=reduction), updated(reduction=reduction), atol=5e-6)
    assert len(batch.rewards) == N


def test_one_part_is_enough_where_all_fits():
    assert cut(make_groups(), 1000)[1].parts == 1
    check_equal(updated(tokens=1000), updated())


def test_groups_left_out_change_nothing_but_what_metrics_are_of():
    assert cut(make_groups(), LEAST, skip=True)[1].parts < cut(make_groups(), LEAST)[1].parts
    check_equal(updated(tokens=LEAST, skip=True)[0], updated()[0], atol=5e-6)


lengths = st.lists(st.integers(0, 12), min_size=15, max_size=15).map(
    lambda x: np.reshape(x, (5, 3))
)
prompts = st.lists(st.integers(1, 4), min_size=5, max_size=5)


@settings(max_examples=8)
@given(
    prompts, lengths, st.integers(16, 90), st.sampled_from([1, 2]), st.sampled_from([*REDUCTIONS])
)
def test_any_cut_has_the_gradient_of_the_whole_in_float64(
    prompts, lengths, tokens, together, reduction
):
    rng = np.random.default_rng(int(lengths.sum()))
    mask = np.arange(12) < lengths[..., None]
    groups = make_groups(n=5)._replace(
        prompt_ids=rng.integers(0, 5, (5, 4)).astype(np.int32),
        prompt_mask=np.arange(4) < np.array(prompts)[:, None],
        completion_ids=rng.integers(0, 5, mask.shape).astype(np.int32),
        completion_mask=mask,
        loss_mask=mask & (rng.random(mask.shape) < 0.8),
        behavior_log_probs=rng.normal(-1.6, 0.3, mask.shape),
        proximal_log_probs=rng.normal(-1.6, 0.3, mask.shape),
        ref_log_probs=rng.normal(-1.6, 0.3, mask.shape),
    )
    batch, shape = cut(groups, tokens, together=together)
    assert shape.row <= tokens
    assert shape.parts % together == 0
    with jax.enable_x64(True):
        wide = jax.tree.map(_wide, (toy.make_params(), batch, hypers(0.1, 0.7, KNOBS)))
        recipe = make_recipe(reduction=REDUCTIONS[reduction], together=together)
        found, expected = (
            _gradient(*wide, recipe._replace(packed=packed)) for packed in (True, False)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10), found, expected)


def _wide(x):
    return jnp.asarray(np.asarray(x, np.float64 if x.dtype == jnp.float32 else x.dtype))


def _gradient(params, batch, given, recipe):
    batch = batch if recipe.packed else batch._replace(packing=None)
    grads, evidence = gradient(params, weigh(batch, recipe, given), given, recipe)
    assert evidence.output.log_probs.dtype == jnp.float64
    return grads, evidence


def test_what_looks_at_a_whole_group_is_refused():
    batch, _ = cut(make_groups(), LEAST)
    recipe = make_recipe(packed=True, algorithm=ALGORITHMS["opmd_pairwise"])
    given = hypers(0.1, 0.7, {"tau": 1.0, "beta": 0.0})
    with pytest.raises(ValueError, match=r"opmd_pairwise looks at a whole group.* may split"):
        gradient(toy.make_params(), weigh(batch, recipe, given), given, recipe)
