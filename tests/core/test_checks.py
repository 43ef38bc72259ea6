"""The core's errors name the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import (
    advantages,
    aggregate,
    certificates,
    checks,
    estimators,
    gates,
    objectives,
    returns,
    surrogates,
    trust_region,
    weights,
)

ROW, EMPTY = jnp.ones((1, 3)), jnp.zeros((2, 3, 0))
KEPT, COUNTS, BARE = ROW > 0, jnp.ones((1, 3), int), returns.Trajectory(ROW[..., None] > 0)
REFUSED = [
    (lambda: checks.check_axes("T", mask=KEPT[0, 0]), r"arrays \[..., T\], got {'mask': \(\)}"),
    (lambda: aggregate.group_total(ROW[0], KEPT[0]), r"expected arrays \[..., G, T\]"),
    (lambda: objectives.grpo(EMPTY, objectives.TokenBatch(EMPTY, EMPTY > 0, EMPTY)), "empty"),
    (lambda: token_loss(beta=-1.0), r"beta must be >= 0, got -1"),
    (lambda: aggregate.token_total(ROW, COUNTS), "mask must be bool, got int32"),
    (lambda: aggregate.token_total(ROW, KEPT, counted=COUNTS), "counted must be bool"),
    (lambda: weights.truncated_weight(ROW, KEPT, cap=-1.0), "cap must be >= 0, got -1"),
    (lambda: advantages.group_standardized(ROW, eps_inside=-1e-3), "eps_inside must be >= 0"),
    (lambda: advantages.soft_value(ROW, tau=0.0), "tau must lie strictly between 0 and inf, got 0"),
    (lambda: advantages.exponentially_weighted(ROW, tau=0.0), "tau must lie strictly between"),
    (lambda: advantages.max_at_k(ROW, k=0.5), r"k must be >= 1, got 0\.5"),
    (lambda: advantages.pass_at_k(ROW, k=0.0), "k must be >= 1, got 0"),
    (lambda: soften(temperature_neg=0.0), "temperature_neg must lie strictly between 0 and inf"),
    (lambda: advantages.leave_prompt_out(ROW), r"\[N, G\] with N >= 2, got \[1, 3\]"),
    (lambda: advantages.leave_prompt_out(EMPTY), r"N >= 2, got \[2, 3, 0\]"),
    (lambda: returns.step_returns(ROW, BARE), "rewards of steps are read"),
    (lambda: returns.process_standardized(ROW, BARE), "rewards of steps are read"),
    (lambda: returns.gae(ROW, BARE, discount=1.0, decay=1.0), "need the values of the states"),
    (lambda: trust_region.sequence_mask(objectives.grpo, delta=-0.1), "delta must be >= 0"),
    (lambda: estimators.importance_terms(ROW[0], jnp.ones(4)), r"need weights \[n\]"),
    (lambda: estimators.every_sample(jnp.full(10, 0.1), 9), r"cannot list 10\^9 samples"),
    (lambda: estimators.every_sample(jnp.full(2, 0.5), 0), "n must be >= 1, got 0"),
    (lambda: gates.top_entropy_mask(ROW, ROW[:, 1:], KEPT, share=0.2), r"'entropy': \(1, 3\)"),
    (lambda: gap(reward_high=0.5), r"span \[1.0, 1.0\], which must lie in \[0.0, 0.5\]; widen"),
    (lambda: gap(reward_low=float("nan")), r"rewards span .* must lie in \[nan, 1.0\]"),
    (lambda: gap(eps_high=-0.1), r"eps_high must be >= 0, got -0\.1"),
    (lambda: bet(delta=0.0), "delta must lie strictly between 0 and 1, got 0"),
    (lambda: bet(delta=1.0), "delta must lie strictly between 0 and 1, got 1"),
    (lambda: bet(rates=(0.5, 1.0)), r"rates\[1\] must lie strictly between 0 and 1, got 1"),
    (lambda: bet(rates=()), "rates is empty; pass one"),
    (lambda: certificates.bernstein_rate(0.0, 9, floor=1.0, delta=0.1), "second_moment must lie"),
]


def token_loss(**knobs):
    batch = objectives.TokenBatch(ROW, KEPT, ROW)
    return objectives.token_loss(ROW, batch, surrogate_fn=lambda r, a: r * a, **knobs)


def soften(**changes):
    knobs = {"temperature_pos": 1.0, "temperature_neg": 1.0} | changes
    return surrogates.soft_surrogate(ROW, ROW, **knobs)


def gap(**changes):
    knobs = {"eps_low": 0.2, "eps_high": 0.2, "reward_low": 0.0, "reward_high": 1.0} | changes
    return certificates.improvement_gap(ROW, ROW, ROW, **knobs)


def bet(**changes):
    knobs = {"floor": 1.0, "delta": 0.1, "rates": (0.5,)} | changes
    return certificates.betting_confidence(ROW, **knobs)


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_is_refused_by_its_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_float32_reward_may_lie_on_an_end_that_it_rounds_away_from():
    reward, band = jnp.array([0.3]), {"eps_low": 0.2, "eps_high": 0.2, "reward_low": 0.0}
    gap = certificates.improvement_gap(jnp.ones(1), jnp.ones(1), reward, **band, reward_high=0.3)
    np.testing.assert_allclose(gap, 0, atol=1e-7)


@pytest.mark.parametrize("value", [-1.0, float("nan"), jnp.array([0.1, -0.1])])
def test_a_known_scalar_is_judged_inside_a_jit(value):
    with pytest.raises(ValueError, match="eps must be >= 0"):
        jax.jit(lambda x: (checks.check_nonnegative(eps=value), x)[1])(1.0)


def test_a_traced_scalar_is_the_callers_business():
    jax.jit(lambda eps: (checks.check_nonnegative(eps=eps), eps)[1])(-1.0)
