"""What a loss of one's own is composed of: padding cannot poison it, gates multiply."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core import diagnostics, gates, objectives, surrogates, traces
from ogrpo.core.aggregate import sequence_mean
from ogrpo.core.corrections import corrected
from ogrpo.core.weights import plain_weight
from tests.core.cases import arrays, batch_of


def poisoned():
    a = arrays()
    for field in (a.lp, a.old, a.prox, a.ref, a.A):
        field[~a.mask] = np.nan
    return jnp.asarray(a.lp, float), batch_of(a), a.mask


def test_a_closure_over_a_masked_batch_has_no_nan_in_its_gradient():
    """Without `masked_batch` the value is right and the gradient NaN: 0 * NaN survives the mask."""
    raw, padded, mask = poisoned()

    def loss(x, *, clean):
        log_probs, batch = objectives.masked_batch(x, padded) if clean else (x, padded)
        delta = log_probs - batch.behavior_log_probs
        own = objectives.scored(
            log_probs,
            batch,
            lambda r, a: gates.open_gate(r, a) * (jnp.abs(delta) < 1).astype(float),
        )
        return sequence_mean(own - delta**2 * batch.advantages, batch.mask)

    assert np.isfinite(jax.grad(partial(loss, clean=True))(raw)).all()
    assert np.isnan(jax.grad(partial(loss, clean=False))(raw)).any()
    np.testing.assert_allclose(loss(raw, clean=True), loss(raw, clean=False), rtol=1e-6)
    assert not np.any(np.asarray(jax.grad(partial(loss, clean=True))(raw))[~mask])


def test_a_corrected_objective_cannot_see_under_the_mask():
    raw, padded, mask = poisoned()
    loss = partial(corrected, objective_fn=objectives.grpo, weight_fn=plain_weight)
    gradient = jax.grad(lambda x: jnp.sum(loss(x, padded)))(raw)
    assert np.isfinite(gradient).all()
    assert not np.any(np.asarray(loss(raw, padded))[~mask])
    assert not np.any(np.asarray(gradient)[~mask])


def test_the_score_form_and_the_ratio_form_agree_in_gradient():
    a = arrays()
    log_probs, batch = jnp.asarray(a.lp, float), batch_of(a)
    gate = partial(gates.two_side_gate, eps_low=0.2, eps_high=0.3)
    weighted = partial(gates.ratio_gate, gate_fn=gate)
    forms = (
        lambda x: objectives.scored(x, batch, weighted).sum(),
        lambda x: objectives.gated(x, batch, gate).sum(),
        lambda x: objectives.gated(x, batch, gate, surrogate_fn=surrogates.ratio_surrogate).sum(),
    )
    first, *others = (jax.grad(form)(log_probs) for form in forms)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5)


def test_the_drift_is_what_came_before_the_update():
    a = arrays()
    expected = np.where(a.mask, a.prox - a.old, 0)
    np.testing.assert_allclose(objectives.drift(batch_of(a)), expected, rtol=1e-5, atol=1e-6)


def test_gates_multiply():
    ratio, up = jnp.array([0.5, 0.9, 1.1, 3.0]), jnp.ones(4)
    band = partial(gates.band_gate, low=0.8, high=2.0)
    cap = partial(gates.clipped_gate, low=0.0, high=1.0)
    both = gates.both_gates(ratio, up, gate_fn=band, and_gate_fn=cap)
    np.testing.assert_allclose(both, [0, 0.9, 1, 0], rtol=1e-6)


def test_vespos_gate_is_one_on_policy_and_fades_on_both_sides():
    gate = partial(
        gates.concentrated_gate, power_pos=2.0, rate_pos=3.0, power_neg=3.0, rate_neg=2.0
    )
    ratio = jnp.array([0.0, 0.5, 1.0, 4.0, 1e20])
    up, down = (gate(ratio, sign * jnp.ones(5)) for sign in (1, -1))
    np.testing.assert_allclose(
        up, [0, 0.25 * np.exp(1.5), 1, 16 * np.exp(-9), 0], rtol=1e-5, atol=1e-30
    )
    np.testing.assert_allclose(
        down, [0, 0.125 * np.exp(1), 1, 64 * np.exp(-6), 0], rtol=1e-5, atol=1e-30
    )


def test_vtrace_weights_are_vtraces_advantages_for_a_constant_value():
    """With one reward at the end and V = b everywhere, w_t (R - b) is V-trace's own advantage."""
    log_ratio = jnp.array([[0.4, -0.6, 0.9, -0.2, 5.0]])
    mask = jnp.array([[True, True, True, True, False]])
    reward, value = 1.0, 0.3
    caps = {"decay": 0.9, "ratio_cap": 1.3, "trace_cap": 1.1}
    rewards = jnp.array([[0.0, 0.0, 0.0, reward, 0.0]])
    targets = traces.vtrace(
        log_ratio, rewards, jnp.full((1, 5), value), jnp.zeros(1), mask, discount=1.0, **caps
    )
    weights = traces.vtrace_weight(log_ratio, mask, **caps)
    np.testing.assert_allclose(weights * (reward - value), targets.advantages, rtol=1e-5)


def test_what_a_clip_removes_is_counted_by_its_gradient():
    a = arrays()
    log_probs, batch = jnp.asarray(a.lp, float), batch_of(a)
    eps = {"eps_low": 0.15, "eps_high": 0.3}
    ratio = np.exp(a.lp - a.old)
    low = (a.mask & (ratio < 0.85) & (a.A < 0)).sum()
    high = (a.mask & (ratio > 1.3) & (a.A > 0)).sum()
    ours = diagnostics.silenced_totals(log_probs, batch, loss_fn=partial(objectives.grpo, **eps))
    assert min(low, high) > 0
    np.testing.assert_array_equal(ours, [[low, a.mask.sum()], [high, a.mask.sum()]])
    free = diagnostics.silenced_totals(log_probs, batch, loss_fn=objectives.reinforce)
    assert float(free.low.total) == float(free.high.total) == 0


def test_the_users_weights_are_held_constant():
    a = arrays()
    batch = batch_of(a)
    assert objectives.token_weights(batch) == 1.0
    held = objectives.token_weights(batch._replace(weights=batch.advantages))
    np.testing.assert_array_equal(held, batch.advantages)
    moved = jax.grad(
        lambda w: objectives.grpo(jnp.asarray(a.lp, float), batch._replace(weights=w)).sum()
    )(jnp.ones(a.lp.shape))
    assert not np.any(moved)


def test_a_loss_of_completions_is_spread_evenly_and_its_sum_is_that_loss_again():
    a = arrays()
    losses = jnp.arange(8.0).reshape(2, 4, 1) + 1
    tokens = objectives.evenly(losses, batch_of(a))
    assert not np.any(np.asarray(tokens)[~a.mask])
    again = np.where(a.mask.any(-1), losses[..., 0], 0)
    np.testing.assert_allclose(tokens.sum(-1), again, rtol=1e-6)


def test_a_clip_stops_the_gradient_where_it_binds_and_not_on_the_way_back():
    ratio = jnp.array([0.5, 1.0, 2.0, 0.5, 1.0, 2.0])
    signs = jnp.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    gain = partial(surrogates.interval_surrogate, advantages=signs, low=0.8, high=1.5)
    np.testing.assert_allclose(gain(ratio), [0.5, 1.0, 1.5, -0.8, -1.0, -2.0])
    np.testing.assert_array_equal(jax.grad(lambda r: gain(r).sum())(ratio), [1, 1, 0, 0, -1, -1])
