"""Score centring in the learner's loss: exact over every token that a sampler may draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.centering.drift import drift, left, main
from ogrpo.batch import PolicyOutput
from ogrpo.config.method import CENTERED
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.learner.state import hypers
from ogrpo.learner.update import LossInputs, UpdateSpec, centering_losses, token_batch
from tests.learner.toy import make_batch

V = 6
RNG = np.random.default_rng(2)
THETA = jnp.asarray(RNG.normal(size=V), jnp.float32)
LOG_Q = jax.nn.log_softmax(jnp.asarray(RNG.normal(size=V) * 0.5, jnp.float32) + THETA)


def losses(name, theta, gains, k=V):
    """Losses [V] of one token each, the method's and what centring adds: V completions drawn."""
    method = ALGORITHMS[name]
    values = method.settings({"length": 1.0} if "length" in method.knobs else {})
    best = jnp.argsort(-LOG_Q)[:k].astype(jnp.int32)
    batch = make_batch(n=1, g=V, t=1)._replace(
        completion_ids=jnp.arange(V, dtype=jnp.int32)[None, :, None],
        behavior_log_probs=LOG_Q[None, :, None],
        proximal_log_probs=None,
        ref_log_probs=None,
        top_ids=jnp.broadcast_to(best, (1, V, 1, k)),
        top_log_probs=jnp.broadcast_to(LOG_Q[best], (1, V, 1, k)),
    )
    log_p = jax.nn.log_softmax(theta)
    top = jnp.broadcast_to(log_p[best], (1, V, 1, k))
    output = PolicyOutput(log_p[None, :, None], jnp.zeros((1, V, 1)), top_log_probs=top)
    mask = batch.active_mask
    inputs = LossInputs(batch, gains[None], mask, mask)
    tokens = token_batch(inputs, output, frozenset())
    spec = UpdateSpec(lambda *_: output, method, frozenset(), centered=True)
    numbers = hypers(0.0, 1.0, values)
    more = centering_losses(spec, numbers, output, inputs, tokens)
    return method.token_loss(output.log_probs, tokens, values)[0, :, 0], more[0, :, 0]


def gradients(name, gains, k=V):
    """E_q of the gradient without centring, and with."""

    def expected(theta, centered):
        plain, more = losses(name, theta, gains, k)
        return jnp.sum(jnp.exp(LOG_Q) * (plain + centered * more))

    grad = jax.jit(jax.grad(expected))
    return grad(THETA, 0.0), grad(THETA, 1.0)


@pytest.mark.parametrize("gain", [0.8, -0.8])
@pytest.mark.parametrize("name", CENTERED)
def test_where_all_tokens_earn_the_same_nothing_moves(name, gain):
    """The gradient is then drift alone, and gone with the whole vocabulary.

    No ratio here reaches CISPO's cap: weighed by the whole ratio, its samples have no drift.
    """
    plain, centered = gradients(name, jnp.full(V, gain))
    assert (jnp.linalg.norm(plain) > 1e-3) == (name != "cispo")
    np.testing.assert_allclose(centered, jnp.zeros(V), atol=2e-6)


def test_what_is_left_is_the_covariance():
    """E_q[-A d log p] + E_q[A] E_q[d log p], of REINFORCE."""
    gains = jnp.asarray(RNG.normal(size=V), jnp.float32)
    q, score = jnp.exp(LOG_Q), jax.jacobian(jax.nn.log_softmax)(THETA)
    expected = -(q * gains) @ score + (q @ gains) * (q @ score)
    np.testing.assert_allclose(gradients("reinforce", gains)[1], expected, atol=1e-6)
    drift = [jnp.linalg.norm(g) for k in (V - 3, V) for g in gradients("reinforce", jnp.ones(V), k)]
    assert drift[0] == drift[2] > drift[1] > 100 * drift[3]


@pytest.mark.parametrize("name", CENTERED)
def test_a_token_of_these_methods_depends_on_its_own_ratio_alone(name):
    method, batch = ALGORITHMS[name], make_batch(n=1, g=2, t=4)
    values = method.settings({"length": 4.0} if "length" in method.knobs else {})
    log_probs, behavior = batch.proximal_log_probs, batch.behavior_log_probs
    inputs = LossInputs(batch, jnp.array([[1.0, -1.0]]), batch.active_mask, batch.active_mask)

    def flat(x, shift):
        moved = inputs._replace(batch=batch._replace(behavior_log_probs=behavior + shift))
        output = PolicyOutput(x.reshape(behavior.shape), jnp.zeros(behavior.shape))
        tokens = token_batch(moved, output, frozenset())
        return method.token_loss(output.log_probs, tokens, values).ravel()

    slopes = jax.jacobian(flat)(log_probs.ravel(), 0.0)
    np.testing.assert_array_equal(slopes, np.diag(np.diag(slopes)))
    again = jax.jacobian(flat)(log_probs.ravel() + 0.5, 0.5)
    np.testing.assert_allclose(again, slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [2, 4, V])
def test_the_measured_drift_and_what_centring_leaves_of_it_are_their_formulas(k):
    grids = LOG_Q[None, None, None], jnp.zeros((1, 1, 1), jnp.int32)

    def gradient(surrogate):
        def total(theta):
            return jnp.sum(surrogate(jax.nn.log_softmax(theta)[None, None, None], *grids))

        return jax.grad(total)(THETA)

    p, q = np.asarray(jax.nn.softmax(THETA), np.float64), np.exp(np.asarray(LOG_Q, np.float64))
    np.testing.assert_allclose(gradient(drift), q - p, atol=1e-6)
    beyond = np.ones(V, bool)
    beyond[np.argsort(-q)[:k]] = False
    rho = q[beyond].sum() / max(p[beyond].sum(), 1e-6)
    tail = np.where(beyond, q - rho * p, 0)
    np.testing.assert_allclose(gradient(left(k)), tail - p * tail.sum(), atol=1e-6)


def test_the_drift_is_measured_of_as_many_groups_as_were_asked_for_or_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--trained", "DIR", "--groups", "20"])
    assert "--groups is 20: give a multiple of 16" in capsys.readouterr().err
