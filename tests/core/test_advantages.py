"""Advantages by hand, and the groups that have none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import advantages

R = jnp.array([[1.0, 0.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
TAKES_A_GROUP = {
    "centered": advantages.centered,
    "leave_one_out": advantages.leave_one_out,
    "group_standardized": advantages.group_standardized,
    "batch_standardized": advantages.batch_standardized,
    "lowered_baseline": advantages.lowered_baseline,
    "soft_value": advantages.soft_value,
    "exponentially_weighted": advantages.exponentially_weighted,
    "drop_negatives": lambda r: advantages.drop_negatives(r, jax.random.key(0)),
    "positive_part": advantages.positive_part,
}
NEEDS_NO_SIBLING = {
    "raw": advantages.raw,
    "successes": advantages.successes,
    "above_baseline": lambda r: advantages.above_baseline(r, baseline=0.5),
    "leave_prompt_out": advantages.leave_prompt_out,
}


@pytest.mark.parametrize("name", sorted(TAKES_A_GROUP))
@pytest.mark.parametrize("shape", [(), (3, 1), (2, 0)])
def test_a_group_of_one_has_no_baseline(name, shape):
    with pytest.raises(ValueError, match="G >= 2"):
        TAKES_A_GROUP[name](jnp.zeros(shape))


@pytest.mark.parametrize("name", sorted(NEEDS_NO_SIBLING))
def test_one_completion_is_enough_without_siblings_and_none_is_not(name):
    expected = {"raw": 1, "successes": 1, "above_baseline": 0.5, "leave_prompt_out": 1}[name]
    assert NEEDS_NO_SIBLING[name](jnp.array([[1.0], [0.0]]))[0, 0] == expected
    for shape in [(), (2, 0)]:
        with pytest.raises(ValueError, match=r"G >= 1|N >= 2"):
            NEEDS_NO_SIBLING[name](jnp.zeros(shape))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize(("inside", "outside"), [(0.0, 1e-4), (0.01, 0.0), (0.0, 0.0)])
def test_standardized_by_hand(ddof, inside, outside):
    r = np.asarray(R[0], np.float64)
    expected = (r - 1) / (np.sqrt(r.var(ddof=ddof) + inside) + outside)
    ours = advantages.group_standardized(R, ddof=ddof, eps_inside=inside, eps_outside=outside)
    np.testing.assert_allclose(ours[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(ours[1], 0)


def test_batch_standardized_has_one_scale():
    ours = advantages.batch_standardized(R, ddof=1, eps_outside=1e-4)
    np.testing.assert_allclose(ours[0], (R[0] - 1) / (np.std(R, ddof=1) + 1e-4), rtol=1e-5)
    np.testing.assert_array_equal(ours[1], 0)
    np.testing.assert_array_equal(advantages.batch_standardized(R * 0 + 0.1), 0)


def test_zero_variance_groups_are_found():
    np.testing.assert_array_equal(advantages.zero_variance_mask(R), [False, True])
    np.testing.assert_array_equal(advantages.zero_variance_mask(R[:, :1]), [True, True])


OF_SETS = {
    "mean_normalized": advantages.mean_normalized,
    "max_at_k": advantages.max_at_k,
    "pass_at_k": advantages.pass_at_k,
    "batch_centered": advantages.batch_centered,
}


@pytest.mark.parametrize("name", sorted(TAKES_A_GROUP | NEEDS_NO_SIBLING | OF_SETS))
def test_a_completion_that_was_not_judged_is_left_out(name):
    """Its siblings earn what they would if it had not been drawn."""
    fn = (TAKES_A_GROUP | NEEDS_NO_SIBLING | OF_SETS)[name]
    rewards = jnp.array([[1.0, 0.25, 3.0], [2.0, 2.0, 2.0], [0.5, 1.5, 1.0]])
    if name == "pass_at_k":  # of successes and failures
        rewards = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    beside = jnp.concatenate([rewards[:, :1], jnp.full((3, 1), jnp.nan), rewards[:, 1:]], axis=1)
    earned = fn(beside)
    np.testing.assert_array_equal(earned[:, 1], 0)
    if name == "drop_negatives":  # other lots are drawn, of a group of another size
        np.testing.assert_allclose(earned.sum(1), 0, atol=1e-6)
        return
    np.testing.assert_allclose(earned[:, [0, 2, 3]], fn(rewards), rtol=1e-6, atol=1e-7)


def test_what_was_not_judged_is_told_apart_from_0():
    values, present = advantages.judged(jnp.array([0.0, jnp.nan, 2.0]))
    np.testing.assert_array_equal(values, [0, 0, 2])
    np.testing.assert_array_equal(present, [True, False, True])


@pytest.mark.parametrize("name", sorted(TAKES_A_GROUP | NEEDS_NO_SIBLING))
def test_a_group_that_was_not_judged_earns_nothing(name):
    earned = (TAKES_A_GROUP | NEEDS_NO_SIBLING)[name](R.at[1].set(jnp.nan))
    np.testing.assert_array_equal(earned[1], 0)
    assert np.isfinite(earned).all()


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match="eps_inside must be >= 0"):
        advantages.group_standardized(R, eps_inside=-1e-3)
