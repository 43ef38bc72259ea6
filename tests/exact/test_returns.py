"""Advantages by token, and baselines for one completion: their expected gradients, enumerated."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from ogrpo.core import advantages
from ogrpo.core.aggregate import mean, sequence_sum_total
from ogrpo.core.algorithms.base import at_tokens
from ogrpo.core.objectives import TokenBatch, reinforce
from ogrpo.core.returns import Trajectory, gae, step_returns
from tests.exact.draws import EPS, for_all, values, widths

pytestmark = pytest.mark.slow

# Completions (0,), (1, 0) and (1, 1): the first token may end it, the second always does.
SEQUENCES, T = 3, 2
MASK = np.array([[True, False], [True, True], [True, True]])
FIRST, SECOND = np.array([0, 1, 1]), np.array([0, 0, 1])


def log_probs(theta):
    """Log-probs [3, 2] of the completions' tokens; theta holds a logit for each choice."""
    first, second = jax.nn.log_softmax(theta[:2]), jax.nn.log_softmax(theta[2:])
    return jnp.stack([first[FIRST], jnp.where(MASK[:, 1], second[SECOND], 0)], axis=-1)


def expected_gradient(credit, groups):
    """Jitted (theta, *known) -> -E of the loss's gradient over all groups, [K, N, G] completions.

    `credit(group, *known)` are the advantages of completions [N, G].
    """
    groups = jnp.asarray(groups)

    @jax.jit
    def expected(theta, *known):
        chances = jnp.prod(jnp.exp(log_probs(theta).sum(-1))[groups], axis=(1, 2))

        def gradient(group):
            def loss(x):
                ours, mask = log_probs(x)[group], jnp.asarray(MASK)[group]
                spread = at_tokens(credit(group, *known), ours)
                batch = TokenBatch(spread, mask, ours, ours, ours)
                return mean(sequence_sum_total(reinforce(ours, batch), mask))

            return -jax.grad(loss)(theta)

        return chances @ jax.vmap(gradient)(groups)

    return expected


def every(prompts, group):
    """All ways to draw so many completions for so many prompts, [K, N, G]."""
    flat = np.array(list(product(range(SEQUENCES), repeat=prompts * group)))
    return flat.reshape(-1, prompts, group)


@jax.jit
@jax.grad
def true_gradient(theta, worth):
    return jnp.exp(log_probs(theta).sum(-1)) @ worth


def by_steps(group, outcome, earned, ends, weight):
    trajectory = Trajectory(jnp.asarray(MASK)[group], earned[group], ends[group])
    return step_returns(outcome[group], trajectory, step_weight=weight)


step_gradient = expected_gradient(by_steps, every(1, 2))


@for_all(values(4), values(3), values(2), values(2), widths, st.booleans())
def test_step_returns_are_unbiased(theta, outcome, of_first, of_second, weight, first_ends):
    """For E[R + w sum of steps], whichever tokens end a step; by the tokens before it alone."""
    earned = np.stack([of_first[FIRST], np.append(0.0, of_second)], axis=-1)
    ends = MASK & np.array([first_ends, True])
    worth = outcome + weight * np.where(ends, earned, 0).sum(-1)
    actual = step_gradient(theta, outcome, earned, ends, weight)
    np.testing.assert_allclose(actual, true_gradient(theta, worth), atol=EPS)


def by_values(group, outcome, table, decay):
    trajectory = Trajectory(jnp.asarray(MASK)[group], values=table[group])
    return gae(outcome[group], trajectory, discount=1.0, decay=decay)


value_gradient = expected_gradient(by_values, every(1, 1))


@for_all(values(4), values(3), values(2), st.sampled_from([0.0, 0.5, 1.0]))
def test_generalised_advantages_are_unbiased_for_true_values_and_without_decay_for_any(
    theta, outcome, guessed, decay
):
    first, second = (np.exp(jax.nn.log_softmax(jnp.asarray(x))) for x in (theta[:2], theta[2:]))
    after = second @ outcome[1:]
    true = np.array([first @ [outcome[0], after], after])
    for known in [true, guessed] if decay == 1 else [true]:
        actual = value_gradient(theta, outcome, np.where(MASK, known, 0.0), decay)
        np.testing.assert_allclose(actual, true_gradient(theta, outcome), atol=EPS)


def test_refuted_generalised_advantages_are_unbiased_for_wrong_values():
    theta, outcome = np.array([0.2, -0.3, 0.5, 0.0]), np.array([0.0, 1.0, 0.0])
    actual = value_gradient(theta, outcome, np.zeros(MASK.shape), 0.0)
    assert np.abs(actual[:2]).max() == 0  # the first choice of (1, 0) earns nothing at once
    assert np.abs(np.asarray(true_gradient(theta, outcome))[:2]).max() > 0.1


other_prompts = expected_gradient(
    lambda group, outcome: advantages.leave_prompt_out(outcome[group]), every(2, 1)
)
from_before = expected_gradient(
    lambda group, outcome, b: advantages.above_baseline(outcome[group], baseline=b), every(1, 1)
)
circular = expected_gradient(
    lambda group, r: advantages.above_baseline(r[group], baseline=r[group].mean()), every(1, 1)
)


@for_all(values(4), values(3), widths)
def test_a_baseline_from_before_or_of_other_prompts_is_unbiased_and_of_the_sample_not(
    theta, outcome, before
):
    for actual in (from_before(theta, outcome, before), other_prompts(theta, outcome)):
        np.testing.assert_allclose(actual, true_gradient(theta, outcome), atol=EPS)
    assert not np.any(circular(theta, outcome))
