"""The parts of a loss: gates token by token by hand, and padding that cannot poison it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import diagnostics, gates, objectives, surrogates, traces
from ogrpo.core.aggregate import sequence_mean
from ogrpo.core.corrections import corrected
from ogrpo.core.weights import plain_weight
from tests.core.cases import arrays, batch_of, poisoned, problem

RATIO = jnp.array([0.3, 0.9, 1.0, 1.1, 1.5, 4.0])
R = np.asarray(RATIO)
UP, DOWN = jnp.ones(6), -jnp.ones(6)
EPS = {"eps_low": 0.2, "eps_high": 0.3}
OUTER = {"outer_low": 0.6, "outer_high": 2.0}
divergence = partial(gates.divergence_gate, low=0.2, high=0.2)


@pytest.mark.parametrize(
    ("gate", "up", "down"),
    [
        (gates.open_gate, [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
        (partial(gates.one_side_gate, **EPS), [1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]),
        (partial(gates.two_side_gate, **EPS), [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 0]),
        (partial(gates.ring_gate, **EPS, **OUTER), [1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 0, 1]),
        (partial(gates.band_gate, low=1.0, high=2.0), [0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 0]),
        (partial(gates.clipped_gate, low=0.5, high=2.0), *[[0.5, 0.9, 1, 1.1, 1.5, 2]] * 2),
        (gates.tapered_gate, [1, 1, 1, 1, 1, 1], [0.3, 0.9, 1, 1, 1, 1]),
        (partial(divergence, divergence=0.3 * UP), [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]),
        (partial(divergence, divergence=0.1 * UP), [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]),
        (
            lambda r, _: traces.trace_coefficient(jnp.log(r), decay=0.9, cap=1.0),
            *[0.9 * np.minimum(R, 1)] * 2,
        ),
    ],
)
def test_gates_by_hand(gate, up, down):
    np.testing.assert_allclose(gate(RATIO, UP), up, rtol=1e-6)
    np.testing.assert_allclose(gate(RATIO, DOWN), down, rtol=1e-6)
    assert np.isnan(gate(RATIO.at[0].set(jnp.nan), UP)[0])
    weighed = gates.ratio_gate(RATIO, UP, gate_fn=gate)
    np.testing.assert_allclose(weighed, R * up, rtol=1e-6)


def test_a_token_without_advantage_fades_like_a_negative_one():
    np.testing.assert_allclose(gates.tapered_gate(RATIO, 0 * UP), np.minimum(RATIO, 1))


def test_a_divergence_that_is_nan_is_not_swallowed():
    broken = jnp.full(6, 0.1).at[2].set(jnp.nan)
    assert np.isnan(divergence(RATIO, UP, divergence=broken)[2])


@pytest.mark.parametrize(
    ("mask_fn", "bounds", "kept"),
    [
        (gates.token_mask, {"low": 0.8, "high": 1.15}, [[1, 0], [0, 1]]),
        (gates.sequence_mask, {"low": 0.7, "high": 1.3}, [[1, 1], [0, 0]]),
        (gates.sequence_mask, {"low": 0.9, "high": 1.4}, [[0, 0], [1, 1]]),
        (gates.geometric_mask, {"low": 0.9, "high": 1.1}, [[1, 1], [0, 0]]),
        (gates.off_policy_sequence_mask, {"delta": 0.05}, [[0, 0], [1, 1]]),
        (gates.k3_mask, {"limit": 0.02}, [[0, 0], [1, 1]]),
    ],
)
def test_masks_of_ratios_by_hand(mask_fn, bounds, kept):
    log_ratio = jnp.array([[0.1, -0.3, 9.0], [0.2, 0.1, 9.0]])
    mask = jnp.array([[True, True, False]] * 2)
    actual = mask_fn(log_ratio, -jnp.ones((2, 3)), mask, **bounds)
    np.testing.assert_array_equal(actual[:, :2], kept)


def test_the_second_moment_mask_drops_the_largest_first():
    log_ratio, mask = jnp.array([0.1, -1.0, 0.3, jnp.nan]), jnp.array([True, True, True, False])
    gate = partial(gates.second_moment_mask, log_ratio, mask)
    np.testing.assert_array_equal(gate(threshold=0.1), [1, 0, 1, 0])
    np.testing.assert_array_equal(gate(threshold=0.5), [1, 1, 1, 0])
    np.testing.assert_array_equal(gate(threshold=0.001), [0, 0, 0, 0])
    np.testing.assert_array_equal(gate(threshold=np.inf), [1, 1, 1, 0])
    ties = gates.second_moment_mask(jnp.ones(4), jnp.ones(4, bool), threshold=1.0)
    np.testing.assert_array_equal(ties, 1)


def test_an_infinite_log_ratio_leaves_the_clip_of_the_released_m2po_where_its_budget_puts_it():
    """Squares .01 and infinity with a mean of .04: .01 and .07, as with any large square."""
    behavior = jnp.array([-1.0, -jnp.inf])
    batch = objectives.TokenBatch(jnp.ones(2), jnp.ones(2, bool), behavior)
    clip = partial(objectives.m2po_released, threshold=0.04, eps_low=0.0, eps_high=0.0)
    losses = clip(jnp.array([-0.9, -1.0]), batch)
    np.testing.assert_allclose(losses, [-np.exp(0.1), -np.exp(np.sqrt(0.07))], rtol=1e-3)


def test_the_tokens_of_highest_entropy_are_kept_whatever_lies_under_the_mask():
    entropy = jnp.array([[0.1, 0.9, 0.5, jnp.nan], [0.3, 0.7, 9.0, 9.0]])
    mask = jnp.array([[True, True, True, False], [True, True, False, False]])
    kept = gates.top_entropy_mask(entropy, jnp.zeros_like(entropy), mask, share=0.4)
    np.testing.assert_array_equal(kept, [[0, 1, 0, 0], [0, 1, 0, 0]])
    nothing = gates.top_entropy_mask(entropy, jnp.zeros_like(entropy), mask & False, share=0.4)
    np.testing.assert_array_equal(nothing, 0)


def test_a_shut_gate_stays_shut_at_zero_probability():
    shut = partial(gates.two_side_gate, **EPS)
    never = jnp.array([-jnp.inf])
    value = surrogates.score(jnp.zeros(1), UP[:1], log_probs=never, gate_fn=shut)
    no_gain = surrogates.score(jnp.ones(1), 0 * UP[:1], log_probs=never, gate_fn=gates.open_gate)
    assert no_gain == 0
    assert value == 0


@pytest.mark.parametrize(("power", "far"), [(0.0, -1e4), (2.0, 1e4)])
def test_vespos_weight_is_finite_wherever_the_policy_is_without_its_power_or_its_rate(power, far):
    log_probs, batch, _ = problem()
    batch = batch._replace(behavior_log_probs=batch.behavior_log_probs.at[0, 0, 0].add(-far))
    knobs = {"power_pos": power, "power_neg": power, "rate_pos": 0.0, "rate_neg": 0.0}
    assert np.isfinite(objectives.vespo(log_probs, batch, **knobs)).all()


def test_a_clip_stops_the_gradient_where_it_binds_and_not_on_the_way_back():
    ratio = jnp.array([0.5, 1.0, 2.0, 0.5, 1.0, 2.0])
    signs = jnp.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    gain = partial(surrogates.interval_surrogate, advantages=signs, low=0.8, high=1.5)
    np.testing.assert_allclose(gain(ratio), [0.5, 1.0, 1.5, -0.8, -1.0, -2.0])
    np.testing.assert_array_equal(jax.grad(lambda r: gain(r).sum())(ratio), [1, 1, 0, 0, -1, -1])


def test_a_closure_over_a_masked_batch_has_no_nan_in_its_gradient():
    """Without `masked_batch` the value is right and the gradient NaN: 0 * NaN survives the mask."""
    a = poisoned()
    raw, padded = jnp.asarray(a.lp, float), batch_of(a)

    def loss(x, *, clean):
        log_probs, batch = objectives.masked_batch(x, padded) if clean else (x, padded)
        delta = log_probs - batch.behavior_log_probs
        near = (jnp.abs(delta) < 1).astype(float)
        term = objectives.scored(log_probs, batch, lambda r, a: gates.open_gate(r, a) * near)
        return sequence_mean(term - delta**2 * batch.advantages, batch.mask)

    assert np.isfinite(jax.grad(partial(loss, clean=True))(raw)).all()
    assert np.isnan(jax.grad(partial(loss, clean=False))(raw)).any()
    np.testing.assert_allclose(loss(raw, clean=True), loss(raw, clean=False), rtol=1e-6)
    assert not np.any(np.asarray(jax.grad(partial(loss, clean=True))(raw))[~a.mask])


@pytest.mark.parametrize(
    "loss",
    [
        partial(corrected, objective_fn=objectives.grpo, weight_fn=plain_weight),
        partial(objectives.token_loss, surrogate_fn=lambda ratio, _: ratio),
    ],
    ids=["corrected", "a surrogate that ignores advantages"],
)
def test_a_loss_of_parts_cannot_see_under_the_mask(loss):
    a = poisoned()
    raw, padded = jnp.asarray(a.lp, float), batch_of(a)
    values, gradient = loss(raw, padded), jax.grad(lambda x: jnp.sum(loss(x, padded)))(raw)
    assert np.isfinite(gradient).all()
    assert not np.any(np.asarray(values)[~a.mask])
    assert not np.any(np.asarray(gradient)[~a.mask])
    assert np.asarray(values)[a.mask].all()
    assert np.asarray(gradient)[a.mask].any()


def test_the_score_form_and_the_ratio_form_agree_in_gradient():
    log_probs, batch, _ = problem()
    gate = partial(gates.two_side_gate, **EPS)
    weighted = partial(gates.ratio_gate, gate_fn=gate)
    score, ratio = (
        jax.grad(lambda x, form=form, fn=fn: form(x, batch, fn).sum())(log_probs)
        for form, fn in ((objectives.scored, weighted), (objectives.gated, gate))
    )
    np.testing.assert_allclose(score, ratio, rtol=1e-5)


def test_what_came_before_the_update_is_the_proximal_policy_over_the_sampler():
    """As a drift, and as the exact centre, which is constant."""
    a = arrays()
    batch, drift = batch_of(a), np.where(a.mask, a.prox - a.old, 0)
    np.testing.assert_allclose(objectives.drift(batch), drift, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(objectives.exact_center(batch), np.exp(drift), rtol=1e-5)
    np.testing.assert_array_equal(objectives.unit_center(batch), 1)
    held = jax.grad(lambda p: objectives.exact_center(batch._replace(proximal_log_probs=p)).sum())(
        batch.proximal_log_probs
    )
    assert not np.any(held)


def test_vtrace_weights_are_vtraces_advantages_for_a_constant_value():
    """With one reward at the end and V = b everywhere, w_t (R - b) is V-trace's own advantage."""
    log_ratio = jnp.array([[0.4, -0.6, 0.9, -0.2, 5.0]])
    mask = jnp.array([[True, True, True, True, False]])
    reward, value = 1.0, 0.3
    caps = {"decay": 0.9, "ratio_cap": 1.3, "trace_cap": 1.1}
    rewards = jnp.array([[0.0, 0.0, 0.0, reward, 0.0]])
    _, advantages = traces.vtrace(
        log_ratio, rewards, jnp.full((1, 5), value), jnp.zeros(1), mask, discount=1.0, **caps
    )
    weights = traces.vtrace_weight(log_ratio, mask, **caps)
    np.testing.assert_allclose(weights * (reward - value), advantages, rtol=1e-5)


def test_what_a_clip_removes_is_counted_by_its_gradient():
    log_probs, batch, a = problem()
    eps = {"eps_low": 0.15, "eps_high": 0.3}
    ratio = np.exp(a.lp - a.old)
    low = (a.mask & (ratio < 0.85) & (a.A < 0)).sum()
    high = (a.mask & (ratio > 1.3) & (a.A > 0)).sum()
    ours = diagnostics.silenced_totals(log_probs, batch, loss_fn=partial(objectives.grpo, **eps))
    assert min(low, high) > 0
    np.testing.assert_array_equal(ours, [[low, a.mask.sum()], [high, a.mask.sum()]])
    free = diagnostics.silenced_totals(log_probs, batch, loss_fn=objectives.reinforce)
    assert [float(side.total) for side in free] == [0, 0]


def test_the_users_weights_multiply_the_gain_alone_and_are_held_constant():
    """And beta the KL term alone, k3 where a token counts."""
    log_probs, batch, a = problem()
    weights = jnp.linspace(0.5, 2.0, log_probs.size).reshape(log_probs.shape)
    assert objectives.token_weights(batch) == 1.0
    loss = partial(objectives.token_loss, log_probs, surrogate_fn=lambda r, a: r * a)
    plain, kl = loss(batch), loss(batch, beta=0.5) - loss(batch)
    delta = np.where(a.mask, a.ref - a.lp, 0)
    np.testing.assert_allclose(kl, 0.5 * (np.expm1(delta) - delta), atol=1e-6)
    with_kl = loss(batch._replace(weights=weights), beta=0.5)
    np.testing.assert_allclose(with_kl, weights * plain + kl, rtol=1e-5, atol=1e-6)
    moved = jax.grad(lambda w: objectives.grpo(log_probs, batch._replace(weights=w)).sum())(weights)
    assert not np.any(moved)


def test_a_loss_of_completions_is_spread_evenly_and_its_sum_is_that_loss_again():
    a = arrays()
    losses = jnp.arange(8.0).reshape(2, 4, 1) + 1
    tokens = objectives.evenly(losses, batch_of(a))
    assert not np.any(np.asarray(tokens)[~a.mask])
    present = a.mask.any(-1)
    again = np.where(present, losses[..., 0], 0)
    np.testing.assert_allclose(tokens.sum(-1), again, rtol=1e-6)
    credit = objectives.per_sequence(batch_of(a))
    np.testing.assert_allclose(credit, np.where(present, a.A[..., 0], 0), rtol=1e-6)
