"""The period's certificate against a policy small enough to enumerate."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from ogrpo.batch import tokens_only
from ogrpo.config.train import Certification
from ogrpo.loop.certify import (
    HEADROOM,
    OLD,
    RATES,
    SHARE,
    _gains_of,
    center_prices,
    certify,
    draw_gains,
    is_settled,
    pair_gains,
)

REWARDS = np.array([0.0, 1.0, 0.0, 1.0])


def gains_of(outcomes, log_old, log_new, share=0.0):
    """Returns gains of completions of one token behind one without loss."""
    tokens = [jnp.asarray(table[outcomes][..., None], jnp.float32) for table in (log_new, log_old)]
    tokens = [jnp.pad(log_probs, ((0, 0), (0, 0), (1, 0))) for log_probs in tokens]
    mask = jnp.broadcast_to(jnp.array([False, True]), (*outcomes.shape, 2))
    rewards = jnp.asarray(REWARDS[outcomes], jnp.float32)
    return draw_gains(*tokens, mask, rewards, share=share)


@pytest.mark.parametrize("seed", range(5))
def test_expected_gain_never_exceeds_the_improvement(seed):
    rng = np.random.default_rng(seed)
    log_old, log_new = (log_softmax(rng.normal(size=4) * 2) for _ in range(2))
    gains = np.asarray(gains_of(np.arange(4)[None], log_old, log_new), np.float64)[0]
    improvement = (np.exp(log_new) - np.exp(log_old)) @ REWARDS
    lost = np.maximum(np.exp(log_new) - (1 + HEADROOM) * np.exp(log_old), 0) @ REWARDS
    assert np.exp(log_old) @ gains == pytest.approx(improvement - lost, abs=1e-6)
    together = np.asarray(gains_of(np.arange(4)[None], log_old, log_new, SHARE), np.float64)[0]
    mixture = SHARE * np.exp(log_new) + (1 - SHARE) * np.exp(log_old)
    assert mixture @ together == pytest.approx(improvement, abs=1e-6)
    assert together.min() >= -1 - 1e-6


def test_the_unit_centre_is_free_inside_the_band_and_priced_outside_it():
    """c a - f(c, 1, a): c = 2, a = 1 with eps_high .25 costs .75; c = .5, a = -1 with .2 costs .3."""
    ones, mask = jnp.zeros((1, 2, 1)), jnp.ones((1, 2, 1), bool)
    rewards, eps = jnp.array([[1.0, 0.0]]), (jnp.float32(0.2), jnp.float32(0.25))
    for ratios, prices in (([1.2, 0.9], [0.0, 0.0]), ([2.0, 0.5], [0.75, 0.3])):
        new = jnp.log(jnp.array(ratios))[None, :, None]
        actual = center_prices(new, ones, mask, rewards, *eps)
        np.testing.assert_allclose(actual[0], prices, atol=1e-6)


def test_of_two_hundred_null_runs_read_after_every_round_no_more_are_certified_than_stated():
    """No period gains; each run has ten periods at .05 / 10, which end at a bound > 0.

    Ten runs may be certified, none is; with seeds 0 to 7 four of 1,600 are. A bound is above 0 where the evidence is at least ln(1/delta), here computed for all reads.
    """
    rng = np.random.default_rng(0)
    old = np.exp(log_softmax([0.2, 0.0, 0.1, -0.3]))
    policies, tables = [], []
    for logits in ([0.5, 0.3, -0.2, -0.6], [0.4, -0.3, 0.1, 0.3], [0.2, 0.0, 0.1, -0.3]):
        new = np.exp(log_softmax(logits))
        excess = max(float((new - old) @ REWARDS), 0.0)
        new += excess * np.where(REWARDS == 1, -0.5, 0.5)
        assert (new - old) @ REWARDS <= 1e-12
        policies.append(new)
        tables.append(np.asarray(gains_of(np.arange(4)[None], np.log(old), np.log(new), SHARE))[0])
    rates, wrong = np.array(RATES), 0
    for run in range(200):
        evidence = []
        for period in range(10):
            new, table = policies[(run + period) % 3], tables[(run + period) % 3]
            drawn = rng.multinomial(OLD * 128, old, size=5) + rng.multinomial(128, new, size=5)
            drawn = drawn.cumsum(axis=0)
            won = np.log1p(rates[:, None] * table) @ drawn.T
            evidence.append(np.logaddexp.reduce(won, axis=0) - np.log(len(rates)))
        wrong += (np.array(evidence) >= np.log(10 / 0.05)).any()
    last = certify(np.repeat(table, drawn[-1]), 0.05)
    assert float(last.evidence) == pytest.approx(evidence[-1][-1], abs=1e-6)
    assert wrong == 0


def test_draws_are_settled_where_they_certify_or_have_little_hope():
    """Read as the loop does, without double precision around it.

    1,920 draws might certify what 400 say, and 960 would only by luck: so many pairs there are.
    """
    terms = Certification(delta=0.05, completions=1920)
    noise = np.tile([-0.3, 0.3], 192)
    with jax.enable_x64(False):
        assert is_settled(noise + 0.2, terms)
        assert not is_settled(noise + 0.03, terms)
        assert is_settled(noise - 0.03, terms)
    assert not is_settled(np.empty(0), terms)
    fewer = np.tile([-0.3, 0.3], 200) + 0.012
    assert not is_settled(fewer, terms)
    assert is_settled(fewer, replace(terms, completions=960))
    assert is_settled(fewer, replace(terms, pairs=True))


def test_a_pair_that_was_not_judged_speaks_against_the_new_weights():
    unknown = np.nan
    new, old = np.array([[1, 0, unknown, 1, unknown]]), np.array([[0, 1, 0.5, unknown, unknown]])
    assert pair_gains(new, old).tolist() == [1, -1, -0.5, 0, -1]
    with pytest.raises(ValueError, match="a certificate is for rewards within"):
        pair_gains(new, old + 2)


def test_a_completion_that_was_not_judged_is_evidence_though_it_carries_no_loss():
    """The new weights draw each completion half as often: a loss of 1/2 where it earned 1, or may."""
    mask = np.ones((1, 3, 2), bool)
    tokens = {"completion_ids": mask.astype(np.int32), "completion_mask": mask}
    prompt = {"prompt_ids": np.ones((1, 1), np.int32), "prompt_mask": np.ones((1, 1), bool)}
    rewards = np.array([[1, 0, np.nan]], np.float32)
    groups = tokens_only(**prompt, **tokens)._replace(
        rewards=rewards, loss_mask=mask & ~np.isnan(rewards)[..., None]
    )
    halved = np.full(mask.shape, np.log(0.5) / 2, np.float32)
    parts = SimpleNamespace(
        learner=SimpleNamespace(packer=None, place=lambda batch: batch, score=lambda *_: halved),
        collection=SimpleNamespace(sampling=SimpleNamespace(temperature=1.0)),
        method=SimpleNamespace(hypers_at=lambda *_: SimpleNamespace(knobs={})),
    )
    state = SimpleNamespace(step=1, train=SimpleNamespace(updates=0), clip_scale=1.0)
    gains, _ = _gains_of(groups, 0, None, state, parts)
    assert gains == pytest.approx([-0.5, 0, -0.5])
