"""Corrections at one prefix, over every token: score centring, and ratios under a cut sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.corrections import log_kept_mass, score_centering

RNG = np.random.default_rng(6)
V = 12
THETA = RNG.normal(size=V)
Q = np.exp(RNG.normal(size=V) * 1.2)
Q = Q / Q.sum()
GAINS = RNG.normal(size=V) + 0.7
CAP = 1.3
WEIGHTS = {"none": None, "truncated": lambda r: jnp.minimum(r, CAP), "plain": lambda r: r}


def weights(p, weight_fn, q=Q):
    return np.ones(V) if weight_fn is None else np.asarray(weight_fn(jnp.asarray(p / q)))


def parts(weight_fn, q=Q):
    """E_q[w A d log p], its drift E_q[A] E_q[w d log p], and d log p [V, V], by hand."""
    p = np.exp(THETA) / np.exp(THETA).sum()
    score = np.eye(V) - p
    w = weights(p, weight_fn, q)
    plain = np.einsum("v,v,v,vj->j", q, w, GAINS, score)
    return p, plain, (q @ GAINS) * ((q * w) @ score), score


def centred_gradient(k, weight_fn, q=Q):
    """The expected descent direction of -w A log p + A C over every drawn token."""
    top = np.argsort(-q)[:k]

    def loss(theta):
        log_p = jax.nn.log_softmax(theta)
        p = jax.lax.stop_gradient(jnp.exp(log_p))
        w = 1.0 if weight_fn is None else jax.lax.stop_gradient(weight_fn(p / q))
        c = score_centering(
            log_p[top][None], jnp.log(jnp.asarray(q[top]))[None], jnp.ones((1, k), bool),
            weight_fn=weight_fn,
        )[0]  # fmt: skip
        return jnp.sum(q * (-w * GAINS * log_p + GAINS * c))

    return -np.asarray(jax.grad(loss)(jnp.asarray(THETA)))


@pytest.mark.parametrize("k", [1, 4, 8, V])
@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_left_is_the_drift_of_the_tail(name, k):
    """Nothing, with the whole vocabulary; importance weights leave no drift to begin with."""
    weight_fn = WEIGHTS[name]
    p, plain, drift, score = parts(weight_fn)
    top, tail = np.argsort(-Q)[:k], np.argsort(-Q)[k:]
    rho = jnp.asarray((1 - Q[top].sum()) / max(1 - p[top].sum(), 1e-6))
    a = rho if weight_fn is None else rho * weight_fn(1 / rho)
    w = weights(p, weight_fn)
    left = (Q @ GAINS) * ((Q * w)[tail] - a * p[tail]) @ score[tail]
    np.testing.assert_allclose(centred_gradient(k, weight_fn), plain - drift + left, atol=1e-9)
    assert (np.abs(drift).max() > 0.05) == (name != "plain")
    if name == "none" and k < V:
        assert np.abs(left).max() > 1e-3


def test_a_longer_top_leaves_less_and_a_proportional_tail_nothing():
    _, plain, drift, _ = parts(None)
    left = [np.linalg.norm(centred_gradient(k, None) - plain + drift) for k in (2, 8, 11, 12)]
    assert left[0] > left[1] > left[3]
    p, top = np.exp(THETA) / np.exp(THETA).sum(), np.argsort(THETA)[-4:]
    q = 0.5 * p
    q[top] *= 1 + 0.5 / q[top].sum()
    _, plain, drift, _ = parts(None, q)
    assert np.abs(drift).max() > 0.01
    np.testing.assert_allclose(centred_gradient(4, None, q), plain - drift, atol=1e-9)


def test_entries_that_were_not_given_and_prefixes_without_any_are_left_out():
    log_p, log_q = (jnp.log(jnp.array([row] * 2)) for row in ([0.5, 0.2], [0.4, 0.3]))
    junk = log_q.at[:, 1].set(-9999.0).at[1, 0].set(jnp.nan)
    present = jnp.array([[True, False], [False, False]])
    actual = score_centering(log_p, junk, present)
    alone = score_centering(log_p[:1, :1], log_q[:1, :1], jnp.array([[True]]))
    np.testing.assert_allclose(actual, [alone[0], 0.0])


def test_the_kept_mass_is_that_of_the_recorded_tokens_and_all_where_none_is_recorded():
    """Less it, log pi is log pi_K of the cut softmax, in value and gradient: ratios over the kept set
    have mean 1, and the gradient is the cut objective's, as `tests/learner/test_sampling_mask.py`
    enumerates for every completion."""
    p, sets = np.exp(THETA) / np.exp(THETA).sum(), ([0, 2, 3], [2], range(V))
    kept = np.array([np.isin(np.arange(V), members) for members in sets])

    def over_kept(logits):
        whole = jnp.broadcast_to(jax.nn.log_softmax(logits), kept.shape)
        mass = log_kept_mass(whole, jnp.asarray(kept))
        return whole - mass[:, None], jnp.exp(mass)

    cut, mass = over_kept(jnp.asarray(THETA))
    scores, _ = jax.jacobian(over_kept)(jnp.asarray(THETA))
    np.testing.assert_allclose(mass, kept @ p, rtol=1e-9)
    for members, log_probs, score in zip(kept, cut, scores, strict=True):
        law = np.where(members, p, 0) / p[members].sum()
        np.testing.assert_allclose(jnp.exp(log_probs)[members], law[members], rtol=1e-9)
        np.testing.assert_allclose(score[members], (np.eye(V) - law)[members], atol=1e-9)
    none, nowhere = jnp.zeros((2, 3), bool), jnp.full((2, 3), -jnp.inf)
    value, grad = jax.value_and_grad(lambda x: log_kept_mass(x, none).sum())(nowhere)
    assert value == 0
    assert not np.any(grad)
