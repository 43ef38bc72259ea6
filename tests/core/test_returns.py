"""Advantages of tokens by hand and by their definitions, and what lies under the mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import advantages
from ogrpo.core.algorithms import ALGORITHMS, STEPS, Algorithm, with_parts
from ogrpo.core.objectives import dpo
from ogrpo.core.returns import Trajectory, process_standardized, squared_error, step_returns
from ogrpo.core.traces import generalized_advantages, vtrace

RNG = np.random.default_rng(5)
MASK = np.arange(5) < RNG.integers(2, 6, (2, 4, 1))
ENDS = (RNG.random(MASK.shape) < 0.5) & MASK
EARNED = RNG.normal(size=MASK.shape)
REWARDS = RNG.normal(size=(2, 4))
TRAJECTORY = Trajectory(*map(jnp.asarray, (MASK, np.where(ENDS, EARNED, np.nan), ENDS)))


def test_step_returns_are_their_definition():
    """The reward and those of the steps to come, less the mean of the others' from that step on."""
    actual = step_returns(jnp.asarray(REWARDS), TRAJECTORY, step_weight=0.5)
    step = np.cumsum(ENDS, -1) - ENDS  # of each token: the steps that ended before it
    for n, g, t in np.ndindex(MASK.shape):
        to_come = np.where(ENDS & (step >= step[n, g, t]), EARNED, 0)[n].sum(-1)
        earned = REWARDS[n] + 0.5 * to_come
        expected = earned[g] - np.delete(earned, g).mean()
        np.testing.assert_allclose(actual[n, g, t], expected, rtol=1e-5, atol=1e-6)


def test_process_supervision_is_its_definition():
    actual = process_standardized(jnp.asarray(REWARDS), TRAJECTORY, eps_inside=0.01)
    for n, g, t in np.ndindex(MASK.shape):
        steps = EARNED[n][ENDS[n]]
        scaled = (EARNED[n, g] - steps.mean()) / np.sqrt(steps.var() + 0.01)
        expected = sum(scaled[u] for u in np.flatnonzero(ENDS[n, g]) if u >= t)
        np.testing.assert_allclose(actual[n, g, t], expected, rtol=1e-4, atol=1e-5)


def test_steps_that_all_earned_the_same_or_are_none_teach_nothing():
    same = TRAJECTORY._replace(step_rewards=jnp.full(MASK.shape, 0.1))
    assert not np.any(process_standardized(jnp.asarray(REWARDS), same))
    none = TRAJECTORY._replace(step_ends=jnp.zeros(MASK.shape, bool))
    assert not np.any(process_standardized(jnp.asarray(REWARDS), none))
    alone = np.asarray(advantages.leave_one_out(jnp.asarray(REWARDS)))
    actual = step_returns(jnp.asarray(REWARDS), none)
    np.testing.assert_allclose(actual, np.repeat(alone[..., None], 5, -1), rtol=1e-5)


def test_generalised_advantages_are_their_sum_and_pass_over_what_is_masked():
    mask = np.array([[True, False, True, True, False]])
    rewards, values = RNG.normal(size=(2, 1, 5))
    dirty = [jnp.asarray(np.where(mask, x, np.nan)) for x in (rewards, values)]
    actual = generalized_advantages(*dirty, jnp.asarray(mask), discount=0.9, decay=0.8)
    places = np.flatnonzero(mask[0])
    after = np.append(values[0, places[1:]], 0.0)
    errors = rewards[0, places] + 0.9 * after - values[0, places]
    expected = [sum(0.72 ** (k - t) * errors[k] for k in range(t, 3)) for t in range(3)]
    np.testing.assert_allclose(actual[0, places], expected, rtol=1e-5)
    assert not np.any(np.asarray(actual)[~mask])


def test_an_advantage_by_token_is_exchanged_and_declared():
    method = with_parts(ALGORITHMS["reinforce"], advantage="step_returns")
    assert method.reads == {STEPS}
    credit = method.compute_advantages(
        jnp.asarray(REWARDS), {"step_weight": 1.0}, trajectory=TRAJECTORY
    )
    assert credit.shape == MASK.shape
    assert with_parts(method, advantage="centered").reads == set()


@pytest.mark.parametrize("name", ["dpo", "opmd_pairwise", "oapl", "vtrace"])
def test_a_loss_of_one_advantage_a_completion_takes_none_by_token(name):
    with pytest.raises(ValueError, match=f"the loss of {name} takes one advantage a completion"):
        with_parts(ALGORITHMS[name], advantage="step_returns")
    with pytest.raises(ValueError, match="one advantage a completion"):
        Algorithm("mine", dpo, one_credit=True, reads=frozenset({STEPS}))


def test_leaving_a_prompt_out_by_hand():
    actual = advantages.leave_prompt_out(jnp.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(actual, [[0.5, -0.5], [-0.75, -0.75], [0.75, 0.75]])


def test_a_running_mean_counts_its_first_value_fully_and_forgets():
    seen = advantages.NOTHING_SEEN
    values = [0.5, 1.0, 0.0, 0.25]
    for n, value in enumerate(values, 1):
        seen = advantages.running_mean(seen, value, rate=0.1)
        shares = 0.1 * 0.9 ** np.arange(n)[::-1]
        np.testing.assert_allclose(seen, (shares @ values[:n] / shares.sum(), shares.sum()))


def test_values_are_drawn_to_returns_that_do_not_move():
    mask = jnp.array([[True, True, False]])
    values, returns = jnp.array([[0.5, 1.0, jnp.nan]]), jnp.array([[1.0, 0.0, jnp.inf]])

    def loss(v, r):
        return squared_error(v, r, mask, value_coef=0.5).sum()

    assert float(loss(values, returns)) == 0.5 * (0.25 + 1.0)
    towards, held = jax.grad(loss, argnums=(0, 1))(values, returns)
    np.testing.assert_array_equal(towards, [[-0.5, 1.0, 0.0]])
    assert not np.any(held)


def by_the_sum(rho, c, r, v, bootstrap, discount):
    """v_t = V_t + sum_s discount^{s-t} (prod c) rho_s (r_s + discount V_{s+1} - V_s)."""
    after = np.append(v[1:], bootstrap)
    out = []
    for t in range(len(r)):
        steps = [
            discount ** (s - t) * np.prod(c[t:s]) * rho[s] * (r[s] + discount * after[s] - v[s])
            for s in range(t, len(r))
        ]
        out.append(v[t] + sum(steps))
    return np.array(out)


def test_vtrace_is_its_definition_under_padding():
    rng = np.random.default_rng(3)
    log_ratio, r, v = rng.normal(0, 1, (3, 2, 5)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3]])
    bootstrap = np.array([0.3, -0.7], np.float32)
    knobs = {"discount": 0.9, "decay": 0.8, "ratio_cap": 1.5, "trace_cap": 1.1}
    targets, ours = vtrace(*map(jnp.asarray, (log_ratio, r, v, bootstrap, mask)), **knobs)
    for i, length in enumerate((5, 3)):
        ratio = np.exp(log_ratio[i, :length])
        rho, c = np.minimum(ratio, 1.5), 0.8 * np.minimum(ratio, 1.1)
        args = (rho, c, r[i, :length], v[i, :length], bootstrap[i], 0.9)
        expected = by_the_sum(*args)
        np.testing.assert_allclose(targets[i, :length], expected, rtol=2e-5, atol=1e-6)
        after = np.append(expected[1:], bootstrap[i])
        advantages = rho * (r[i, :length] + 0.9 * after - v[i, :length])
        np.testing.assert_allclose(ours[i, :length], advantages, rtol=2e-5, atol=1e-6)
    assert not np.any(targets[1, 3:])
