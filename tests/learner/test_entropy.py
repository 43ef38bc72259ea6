"""Entropies and uniform numbers reach the losses that read them."""

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.algorithms import ALGORITHMS, ENTROPY, with_parts
from ogrpo.learner.examine import make_tokens
from ogrpo.learner.state import TrainState, hypers
from ogrpo.learner.update import gradient, weigh
from tests.learner.toy import make_batch, make_params, make_recipe, policy_fn


def gradient_of(algorithm, knobs, seed=0):
    """The gradient of the whole update, and its batch."""
    numbers = algorithm.settings({"beta": 0.0, **knobs})
    recipe = make_recipe(
        algorithm=algorithm, reads=algorithm.inputs(numbers), mask_zero_variance=False
    )
    hyper = hypers(0.1, 1.0, numbers)._replace(seed=jnp.uint32(seed))
    grads, evidence = gradient(make_params(), weigh(make_batch(), recipe, hyper), hyper, recipe)
    return grads["table"] / evidence.total.count


def test_the_bonus_adds_the_gradient_of_the_mean_entropy_and_its_mask_keeps_the_top():
    base = with_parts(ALGORITHMS["grpo"], reduction="token")
    bonus = with_parts(base, bonus="entropy")
    assert ENTROPY in bonus.reads
    batch = make_batch()

    def entropy(params):
        here = policy_fn(params, batch, jnp.float32(1.0)).entropy
        return mean(token_total(here, batch.active_mask))

    added = gradient_of(bonus, {"entropy_coef": 0.3}) - gradient_of(base, {})
    expected = -0.3 * jax.grad(entropy)(make_params())["table"]
    np.testing.assert_allclose(added, expected, rtol=1e-4, atol=1e-6)
    gated = gradient_of(with_parts(base, gate=["top_entropy"]), {"top_share": 0.2})
    moved = np.any(np.asarray(gated) != 0, axis=1)
    assert 0 < moved.sum() < np.any(np.asarray(gradient_of(base, {})) != 0, axis=1).sum()


def test_the_tokens_that_an_entropy_gate_removes_are_told():
    base = with_parts(ALGORITHMS["grpo"], reduction="token")
    batch, params = make_batch(), make_params()
    state = TrainState(params, (), jnp.uint32(0))
    removed = []
    for method, knobs in (base, {}), (with_parts(base, gate=["top_entropy"]), {"top_share": 0.2}):
        numbers = method.settings({"beta": 0.0, **knobs})
        recipe = make_recipe(algorithm=method, reads=method.inputs(numbers))
        seen = make_tokens(recipe)(state, batch, hypers(0.1, 1.0, numbers))
        removed.append(np.asarray(seen.removed))
    before, after = removed
    entropy = np.asarray(policy_fn(params, batch, jnp.float32(1.0)).entropy)
    silent, kept = after & ~before, batch.active_mask & (seen.advantages != 0)[..., None] & ~after
    assert not np.any(before & ~after)
    assert silent.sum() > 0
    assert entropy[silent].max() <= entropy[np.asarray(kept)].min()


def test_lots_are_drawn_by_the_updates_seed():
    knobs = {"share": 0.3, "cov_low": -9.0, "cov_high": 9.0}
    first, again, other = (gradient_of(ALGORITHMS["clip_cov"], knobs, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
