"""The period's certificate against a policy small enough to enumerate."""

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.loop.certify import HEADROOM, certify, draw_gains

REWARDS = np.array([0.0, 1.0, 0.0, 1.0])


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum())


def draw(rng, log_alpha, n, g):
    """Completions of one token each, as `[N, G]` outcomes."""
    return rng.choice(len(log_alpha), size=(n, g), p=np.exp(log_alpha))


def gains_of(outcomes, log_old, log_new):
    tokens = [jnp.asarray(table[outcomes][..., None], jnp.float32) for table in (log_new, log_old)]
    mask = jnp.ones((*outcomes.shape, 1), bool)
    return draw_gains(*tokens, mask, jnp.asarray(REWARDS[outcomes], jnp.float32))


@pytest.mark.parametrize("seed", range(5))
def test_expected_gain_never_exceeds_the_improvement(seed):
    rng = np.random.default_rng(seed)
    log_old, log_new = (log_softmax(rng.normal(size=4) * 2) for _ in range(2))
    gains = np.asarray(gains_of(np.arange(4)[None], log_old, log_new), np.float64)[0]
    improvement = (np.exp(log_new) - np.exp(log_old)) @ REWARDS
    lost = np.maximum(np.exp(log_new) - (1 + HEADROOM) * np.exp(log_old), 0) @ REWARDS
    assert np.exp(log_old) @ gains == pytest.approx(improvement - lost, abs=1e-6)


def test_gain_sums_log_probs_over_the_sequence_and_stops_at_the_mask():
    behavior = jnp.asarray([[[-1.0, -2.0, 9.0], [-0.5, 9.0, 9.0]]])
    new = jnp.asarray([[[-1.5, -2.5, -9.0], [-0.2, -9.0, -9.0]]])
    mask = jnp.asarray([[[True, True, False], [True, False, False]]])
    gains = draw_gains(new, behavior, mask, jnp.ones((1, 2)))
    np.testing.assert_allclose(gains, np.exp([[-1.0, 0.3]]) - 1, rtol=1e-5)


def test_of_two_hundred_null_runs_no_more_are_certified_than_stated():
    """No period gains, some lose; each run has ten periods of 1,280 draws, at .05 / 10 a period."""
    rng = np.random.default_rng(0)
    log_old = log_softmax([0.2, 0.0, 0.1, -0.3])
    tables = []
    for logits in ([0.5, 0.3, -0.2, -0.6], [0.4, -0.3, 0.1, 0.3], [0.2, 0.0, 0.1, -0.3]):
        new = np.exp(log_softmax(logits))
        excess = max(float((new - np.exp(log_old)) @ REWARDS), 0.0)
        new += excess * np.where(REWARDS == 1, -0.5, 0.5)
        assert (new - np.exp(log_old)) @ REWARDS <= 1e-12
        tables.append(np.asarray(gains_of(np.arange(4)[None], log_old, np.log(new)))[0])
    wrong = 0
    for run in range(200):
        counts = rng.multinomial(1280, np.exp(log_old), size=10)
        drawn = [np.repeat(tables[(run + n) % 3], row) for n, row in enumerate(counts)]
        wrong += any(float(certify(gains, 0.05 / 10).bound) > 0 for gains in drawn)
    assert wrong <= 10


def test_a_clear_improvement_is_certified_forwards():
    rng = np.random.default_rng(0)
    log_old, log_new = log_softmax([1.0, 0.0, 1.0, 0.0]), log_softmax([0.3, 0.5, 0.3, 0.5])
    gains = gains_of(draw(rng, log_old, 160, 8), log_old, log_new)
    found = certify(np.asarray(gains).ravel(), 0.05)
    improvement = (np.exp(log_new) - np.exp(log_old)) @ REWARDS
    assert 0 < float(found.bound) < improvement
    assert float(found.evidence) > np.log(20)
