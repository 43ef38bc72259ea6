"""Gates and the surrogates that apply them, token by token by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import gates, objectives, surrogates, traces
from tests.core.cases import arrays, batch_of

RATIO = jnp.array([0.3, 0.9, 1.0, 1.1, 1.5, 4.0])
UP, DOWN = jnp.ones(6), -jnp.ones(6)
EPS = {"eps_low": 0.2, "eps_high": 0.3}
OUTER = {"outer_low": 0.6, "outer_high": 2.0}


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
    ],
)
def test_gates_by_hand(gate, up, down):
    np.testing.assert_allclose(gate(RATIO, UP), up)
    np.testing.assert_allclose(gate(RATIO, DOWN), down)
    assert np.isnan(gate(RATIO.at[0].set(jnp.nan), UP)[0])
    weighed = gates.ratio_gate(RATIO, UP, gate_fn=gate)
    np.testing.assert_allclose(weighed, np.asarray(RATIO) * up, rtol=1e-6)


def test_a_token_without_advantage_fades_like_a_negative_one():
    np.testing.assert_allclose(gates.tapered_gate(RATIO, 0 * UP), np.minimum(RATIO, 1))


def test_the_divergence_gate_shuts_outward_steps_only():
    far = partial(gates.divergence_gate, divergence=jnp.full(6, 0.3), low=0.2, high=0.2)
    np.testing.assert_array_equal(far(RATIO, UP), [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(far(RATIO, DOWN), [0, 0, 1, 1, 1, 1])
    near = gates.divergence_gate(RATIO, UP, divergence=jnp.full(6, 0.1), low=0.2, high=0.2)
    np.testing.assert_array_equal(near, 1)
    broken = jnp.full(6, 0.1).at[2].set(jnp.nan)
    assert np.isnan(gates.divergence_gate(RATIO, UP, divergence=broken, low=0.2, high=0.2)[2])


def test_the_second_moment_mask_drops_the_largest_first():
    log_ratio, mask = jnp.array([0.1, -1.0, 0.3, 2.0]), jnp.array([True, True, True, False])
    gate = partial(gates.second_moment_mask, log_ratio, mask)
    np.testing.assert_array_equal(gate(threshold=0.1), [1, 0, 1, 0])
    np.testing.assert_array_equal(gate(threshold=0.5), [1, 1, 1, 0])
    np.testing.assert_array_equal(gate(threshold=0.001), [0, 0, 0, 0])
    ties = gates.second_moment_mask(jnp.ones(4), jnp.ones(4, bool), threshold=1.0)
    np.testing.assert_array_equal(ties, 1)


def test_the_off_policy_sequence_mask_keeps_the_good_and_the_near():
    log_ratio = jnp.array([[-0.5, -0.7], [-0.5, -0.7], [-0.1, 0.0], [9.0, -0.8]])
    advantages = jnp.array([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    mask = jnp.array([[True, True]] * 3 + [[False, True]])
    kept = gates.off_policy_sequence_mask(log_ratio, advantages, mask, delta=0.3)
    np.testing.assert_array_equal(kept, [[1, 1], [0, 0], [1, 1], [0, 0]])


def test_a_gate_scales_the_gradient_and_has_none():
    def steep(ratio, advantages):
        return advantages * ratio**2

    def gated(r):
        return surrogates.gated(
            r, DOWN, surrogate_fn=surrogates.ratio_surrogate, gate_fn=steep
        ).sum()

    np.testing.assert_allclose(jax.grad(gated)(RATIO), RATIO**2, rtol=1e-6)

    def scored(x):
        return surrogates.score(RATIO, DOWN, log_probs=x, gate_fn=steep).sum()

    np.testing.assert_allclose(jax.grad(scored)(RATIO), RATIO**2, rtol=1e-6)


def test_a_shut_gate_stays_shut_at_zero_probability():
    shut = partial(gates.two_side_gate, **EPS)
    value = surrogates.score(jnp.zeros(1), UP[:1], log_probs=jnp.array([-jnp.inf]), gate_fn=shut)
    assert value == 0


def test_a_trace_is_decayed_and_capped():
    coefficient = traces.trace_coefficient(jnp.log(RATIO), decay=0.9, cap=1.0)
    np.testing.assert_allclose(coefficient, 0.9 * np.minimum(RATIO, 1), rtol=1e-6)


def test_the_exact_centre_is_the_proximal_ratio_and_constant():
    a = arrays()
    batch = batch_of(a)
    expected = np.where(a.mask, np.exp(a.prox - a.old), 1)
    np.testing.assert_allclose(objectives.exact_center(batch), expected, rtol=1e-5)
    gradient = jax.grad(
        lambda p: objectives.exact_center(batch._replace(proximal_log_probs=p)).sum()
    )(batch.proximal_log_probs)
    assert not np.any(gradient)


def test_a_ratio_from_the_proximal_policy_ignores_the_sampler():
    a = arrays()
    batch, log_probs = batch_of(a), jnp.asarray(a.lp, float)
    ratio_fn = objectives.from_proximal(batch)
    delta = ratio_fn(log_probs, batch.behavior_log_probs, batch.mask)
    np.testing.assert_allclose(delta, np.where(a.mask, a.lp - a.prox, 0), rtol=1e-4, atol=1e-6)


def test_the_tokens_of_highest_entropy_are_kept_whatever_lies_under_the_mask():
    entropy = jnp.array([[0.1, 0.9, 0.5, jnp.nan], [0.3, 0.7, 9.0, 9.0]])
    mask = jnp.array([[True, True, True, False], [True, True, False, False]])
    kept = gates.top_entropy_mask(entropy, jnp.zeros_like(entropy), mask, share=0.4)
    np.testing.assert_array_equal(kept, [[0, 1, 0, 0], [0, 1, 0, 0]])
    nothing = gates.top_entropy_mask(entropy, jnp.zeros_like(entropy), mask & False, share=0.4)
    np.testing.assert_array_equal(nothing, 0)
