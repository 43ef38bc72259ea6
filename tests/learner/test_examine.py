"""Measurements beside the update: the spread of the groups' gradients, and the tokens left out."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import take
from ogrpo.core.algorithms import ALGORITHMS, with_parts
from ogrpo.learner.examine import make_noise, make_tokens
from ogrpo.learner.state import hypers
from ogrpo.learner.update import gradient, loss_inputs
from tests.learner.toy import KNOBS, make_batch, make_params, make_spec, make_state, policy_fn

GIVEN = hypers(1.0, 1.0, KNOBS)


def group_gradients(batch):
    """Each group's own part of the gradient of the loss total, [N, V * V]."""
    parts = [take(batch, np.array([n])) for n in range(len(batch.rewards))]
    spec = make_spec()
    of = jax.jit(lambda p: gradient(make_params(), loss_inputs(p, spec, GIVEN), GIVEN, spec)[0])
    return np.array([np.ravel(of(p)["table"]) for p in parts], np.float64)


def test_it_is_the_sample_variance_of_the_groups_gradients():
    batch = make_batch(n=5)
    grads, count = group_gradients(batch), 15
    variance = 5 * grads.var(axis=0, ddof=1).sum() / count**2
    spread = make_noise(make_spec())(make_state(), batch, GIVEN)
    np.testing.assert_allclose(spread["grad_variance"], variance, rtol=1e-5)
    length = np.square(grads.sum(axis=0)).sum() / count**2
    np.testing.assert_allclose(spread["grad_snr"], length / variance - 1, rtol=1e-4)


def test_it_is_unbiased_over_all_draws_of_groups():
    batch, n = make_batch(n=3), 2
    totals = group_gradients(batch)
    count = n * batch.rewards.shape[1]
    truth = n * totals.var(axis=0).sum() / count**2
    spread = make_noise(make_spec())
    draws = [take(batch, np.array(pair)) for pair in product(range(3), repeat=n)]
    estimates = [float(spread(make_state(), draw, GIVEN)["grad_variance"]) for draw in draws]
    np.testing.assert_allclose(np.mean(estimates), truth, rtol=1e-5)


def test_a_loss_that_looks_at_the_whole_batch_has_no_gradient_of_a_group():
    with pytest.raises(ValueError, match="the loss of m2po is not a sum over groups"):
        make_noise(make_spec()._replace(algorithm=ALGORITHMS["m2po"]))


def test_one_group_has_no_variance_to_measure():
    with pytest.raises(ValueError, match="at least 2"):
        make_noise(make_spec())(make_state(), make_batch(n=1), GIVEN)


def test_the_tokens_that_an_entropy_gate_removes_are_told():
    base = with_parts(ALGORITHMS["grpo"], reduction="token")
    batch, state = make_batch(), make_state()
    removed = []
    for method, knobs in (base, {}), (with_parts(base, gate=["top_entropy"]), {"top_share": 0.2}):
        numbers = method.settings({"beta": 0.0, **knobs})
        spec = make_spec(algorithm=method, reads=method.inputs(numbers))
        seen = make_tokens(spec)(state, batch, hypers(0.1, 1.0, numbers))
        removed.append(np.asarray(seen.removed))
    before, after = removed
    entropy = np.asarray(policy_fn(state.params, batch, jnp.float32(1.0)).entropy)
    lost, kept = after & ~before, batch.active_mask & (seen.advantages != 0)[..., None] & ~after
    assert not np.any(before & ~after)
    assert lost.sum() > 0
    assert entropy[lost].max() <= entropy[np.asarray(kept)].min()
