"""Laws that hold for any numbers: of masks, totals, ratios and weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ogrpo.core import advantages, ratios, weights
from ogrpo.core.aggregate import combine
from ogrpo.core.algorithms import REDUCTIONS
from tests.exact.draws import for_all

pytestmark = pytest.mark.slow

SHAPE = (4, 3, 2)  # N, G, T
numbers = hnp.arrays(np.float32, SHAPE, elements=st.floats(-8, 8, width=16))
masks = hnp.arrays(np.bool_, SHAPE)
log_probs = hnp.arrays(np.float32, SHAPE, elements=st.floats(-8, 0, width=16))


def call(name, values, mask):
    knobs = {"length": 2.0} if name == "fixed_length" else {}
    return REDUCTIONS[name](jnp.asarray(values), jnp.asarray(mask), **knobs)


@for_all(numbers, masks, st.permutations(range(4)))
def test_any_split_into_microbatches_adds_up(values, mask, order):
    order = np.array(order)
    for name in REDUCTIONS:
        parts = [call(name, values[order[i : i + 2]], mask[order[i : i + 2]]) for i in (0, 2)]
        np.testing.assert_allclose(combine(*parts), call(name, values, mask), rtol=1e-5, atol=1e-4)


@for_all(log_probs, log_probs, log_probs, masks)
def test_log_ratios_chain_and_reverse(a, b, c, mask):
    a, b, c, mask = map(jnp.asarray, (a, b, c, mask))
    whole = ratios.sequence_log_ratio, ratios.mean_log_ratio
    for fn in (ratios.log_ratio, ratios.prefix_log_ratio, *whole):
        chained = fn(a, b, mask) + fn(b, c, mask)
        np.testing.assert_allclose(fn(a, c, mask), chained, atol=1e-4)
        np.testing.assert_allclose(fn(b, a, mask), -fn(a, b, mask), atol=1e-4)
        assert not np.any(np.asarray(fn(a, b, mask))[~np.asarray(mask)])


@for_all(log_probs, log_probs, masks)
def test_normalised_weights_average_to_one(a, b, mask):
    delta = ratios.log_ratio(*map(jnp.asarray, (a, b, mask)))
    present = mask.any(-1)
    by_sequence = np.asarray(weights.group_normalized_weight(delta, jnp.asarray(mask))).max(-1)
    for group, there in zip(by_sequence, present, strict=True):
        if there.any():
            np.testing.assert_allclose(group[there].mean(), 1, rtol=1e-4)
    by_batch = np.asarray(weights.batch_normalized_weight(delta, jnp.asarray(mask))).max(-1)
    if present.any():
        np.testing.assert_allclose(by_batch[present].mean(), 1, rtol=1e-4)


eighths = hnp.arrays(np.int64, (3, 4), elements=st.integers(-8, 8))
rewards = eighths.map(lambda r: r.astype(np.float32) / 8)


@for_all(rewards, st.integers(-8, 8), st.integers(1, 16).map(lambda i: i / 4))
def test_advantages_do_not_see_shifts_and_scale_as_they_should(r, shift, scale):
    r = jnp.asarray(r)
    for fn in (advantages.centered, advantages.leave_one_out):
        np.testing.assert_allclose(fn(scale * r + shift), scale * fn(r), atol=1e-3)
    standardized = advantages.group_standardized
    np.testing.assert_allclose(standardized(scale * r + shift), standardized(r), atol=1e-3)
    np.testing.assert_allclose(standardized(r).sum(-1), 0, atol=1e-4)
