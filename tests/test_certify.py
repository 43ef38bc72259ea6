"""The period's certificate against a policy small enough to enumerate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.certify import certify, period_gaps

REWARDS = np.array([0.0, 1.0, 0.0, 1.0])


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum())


def draw(rng, log_alpha, n, g):
    """Completions of one token each, as `[N, G]` outcomes."""
    return rng.choice(len(log_alpha), size=(n, g), p=np.exp(log_alpha))


def gaps_of(outcomes, log_previous, log_alpha):
    tokens = [
        jnp.asarray(table[outcomes][..., None], jnp.float32) for table in (log_previous, log_alpha)
    ]
    mask = jnp.ones((*outcomes.shape, 1), bool)
    return period_gaps(*tokens, mask, jnp.asarray(REWARDS[outcomes], jnp.float32))


@pytest.mark.parametrize("seed", range(5))
def test_expected_gap_never_exceeds_the_improvement(seed):
    rng = np.random.default_rng(seed)
    log_previous, log_alpha = (log_softmax(rng.normal(size=4) * 2) for _ in range(2))
    outcomes = np.arange(4)[None]
    gaps = np.asarray(gaps_of(outcomes, log_previous, log_alpha), np.float64)[0]
    improvement = (np.exp(log_alpha) - np.exp(log_previous)) @ REWARDS
    assert np.exp(log_alpha) @ gaps <= improvement + 1e-6
    # with an eps of 1 nothing is clipped on the side that counts, so the bound is tight
    assert np.exp(log_alpha) @ gaps == pytest.approx(improvement, abs=1e-6)


def test_gap_sums_log_probs_over_the_sequence_and_stops_at_the_mask():
    behavior = jnp.asarray([[[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0]]])
    previous = jnp.asarray([[[-1.5, -2.5, -9.0], [-0.2, -9.0, -9.0]]])
    mask = jnp.asarray([[[True, True, False], [True, False, False]]])
    gaps = period_gaps(previous, behavior, mask, jnp.zeros((1, 2)))
    np.testing.assert_allclose(gaps, np.exp([[-1.0, 0.3]]) - 1, rtol=1e-6)


def test_certificates_are_wrong_less_often_than_they_say():
    rng = np.random.default_rng(0)
    log_alpha = log_softmax([0.2, 0.0, 0.1, -0.3])
    log_previous = log_softmax([0.2, 0.1, 0.1, -0.2])
    improvement = (np.exp(log_alpha) - np.exp(log_previous)) @ REWARDS
    assert improvement < 0  # nothing to certify
    wrong = 0
    certify_jit = jax.jit(lambda gaps: certify(gaps, 0.2).certificate.bound)
    for _ in range(400):
        gaps = gaps_of(draw(rng, log_alpha, 16, 8), log_previous, log_alpha)
        wrong += float(certify_jit(gaps)) > improvement
    assert wrong <= 0.2 * 400


def test_a_clear_improvement_is_certified():
    rng = np.random.default_rng(0)
    log_previous, log_alpha = log_softmax([1.0, 0.0, 1.0, 0.0]), log_softmax([0.3, 0.5, 0.3, 0.5])
    gaps = gaps_of(draw(rng, log_alpha, 160, 8), log_previous, log_alpha)
    verdict = certify(gaps, 0.05)
    improvement = (np.exp(log_alpha) - np.exp(log_previous)) @ REWARDS
    assert verdict.completions == 1280
    assert 0 < float(verdict.certificate.bound) < improvement
