"""Completions continued from drafts: their law, their log-probs, and what is kept."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from ogrpo.batch import tokens_only
from ogrpo.policy import completion_log_probs, sample
from ogrpo.policy.drafts import continue_drafts
from tests.policy.tiny import make_config, make_params, ragged_batch

EOS, T, TEMPERATURE = 2, 3, 2.5
CONFIG = replace(make_config(vocab_size=3), max_positions=5 + T)
OLD, NEW = (make_params(CONFIG, seed) for seed in (0, 1))


def draw(params, group_size, key=0, max_tokens=T):
    """Drafts of ragged prompts."""
    prompts = ragged_batch(CONFIG)
    ids = jnp.minimum(prompts.prompt_ids, CONFIG.vocab_size - 1)
    samples = sample(
        params,
        CONFIG,
        ids,
        prompts.prompt_mask,
        jax.random.key(key),
        temperature=TEMPERATURE,
        greedy=False,
        group_size=group_size,
        max_tokens=max_tokens,
        eos_id=EOS,
    )
    return as_batch(ids, prompts.prompt_mask, samples.token_ids, samples.mask)


def as_batch(prompt_ids, prompt_mask, token_ids, mask):
    return tokens_only(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=token_ids,
        completion_mask=mask,
    )


def run(drafts, params=NEW, key=1, **options):
    how = {"temperature": TEMPERATURE, "eos_id": EOS, **options}
    return continue_drafts(params, CONFIG, OLD, drafts, jax.random.key(key), **how)


def exact_law(params, drafts):
    """Every completion of at most T tokens, and its chance after each prompt [N, C]."""
    each = [
        (*start, last)
        for n in range(T)
        for start in itertools.product(range(EOS), repeat=n)
        for last in range(3)
        if last == EOS or n == T - 1
    ]
    ids, mask = np.zeros((len(each), T), np.int32), np.zeros((len(each), T), bool)
    for row, tokens in enumerate(each):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, True
    grid = (drafts.prompt_ids.shape[0], len(each), T)
    whole = as_batch(
        drafts.prompt_ids,
        drafts.prompt_mask,
        jnp.broadcast_to(ids, grid),
        jnp.broadcast_to(mask, grid),
    )
    log_probs = completion_log_probs(params, CONFIG, whole, TEMPERATURE)
    law = np.exp(np.asarray(log_probs, np.float64).sum(-1))
    np.testing.assert_allclose(law.sum(1), 1, atol=1e-5)
    return each, law


def misfit(samples, each, law):
    """Pearson's statistic of completions against a law, and its limit at a level of 1e-4."""
    ids, mask = np.asarray(samples.token_ids), np.asarray(samples.mask)
    numbers = {tokens: n for n, tokens in enumerate(each)}
    counts = np.zeros(law.shape)
    for n, g in np.ndindex(mask.shape[:2]):
        counts[n, numbers[tuple(ids[n, g][mask[n, g]].tolist())]] += 1
    expected = law * mask.shape[1]
    assert expected.min() > 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic, chi2.ppf(1 - 1e-4, law.size - len(law))


@pytest.mark.parametrize("length", [T, 1])
def test_the_law_is_the_policys(length):
    """Of drafts of all T tokens, and of drafts that were cut after the first."""
    drafts = draw(OLD, 4096, max_tokens=length)
    pad = [(0, 0), (0, 0), (0, T - length)]
    drafts = as_batch(
        drafts.prompt_ids,
        drafts.prompt_mask,
        jnp.pad(drafts.completion_ids, pad, constant_values=1),
        jnp.pad(drafts.completion_mask, pad),
    )
    continued = run(drafts)
    each, law = exact_law(NEW, drafts)
    statistic, limit = misfit(continued.samples, each, law)
    assert statistic < limit
    _, before = exact_law(OLD, drafts)
    assert misfit(continued.samples, each, before)[0] > 10 * limit, "the policies are too alike"
    assert 0.2 < np.asarray(continued.kept).mean() / drafts.completion_mask.sum(-1).mean() < 0.9


def test_drafts_of_the_policy_itself_are_kept_whole_and_not_decoded_again(monkeypatch):
    drafts = draw(OLD, 64)
    monkeypatch.delattr("ogrpo.policy.drafts.sample")
    continued = run(drafts, OLD)
    assert continued.steps == 0
    lengths = drafts.completion_mask.sum(-1)
    np.testing.assert_array_equal(continued.kept, lengths)
    np.testing.assert_array_equal(continued.samples.token_ids, drafts.completion_ids)
    np.testing.assert_array_equal(continued.samples.mask, drafts.completion_mask)


@pytest.mark.parametrize("options", [{}, {"halvings": 2, "least_read": 1}])
def test_completions_are_the_samplers_in_form_and_begin_with_what_was_kept(options):
    """Padded by 0 behind the first end or T tokens, with the trainer's log-probs."""
    drafts = draw(OLD, 64)
    samples, kept, steps = run(drafts, **options)
    ids, mask = np.asarray(samples.token_ids), np.asarray(samples.mask)
    ended = (ids == EOS) & mask
    np.testing.assert_array_equal(mask, np.cumsum(ended, -1) - ended == 0)
    np.testing.assert_array_equal(samples.finished, ended.any(-1))
    assert not ids[~mask].any()
    stays = np.arange(T) < np.asarray(kept)[..., None]
    np.testing.assert_array_equal(ids[stays], np.asarray(drafts.completion_ids)[stays])
    whole = as_batch(drafts.prompt_ids, drafts.prompt_mask, samples.token_ids, samples.mask)
    expected = completion_log_probs(NEW, CONFIG, whole, TEMPERATURE)
    np.testing.assert_allclose(samples.log_probs, expected, atol=1e-5)
    assert 0 < steps < T
    assert {*np.asarray(kept).ravel().tolist()} == {*range(T + 1)}


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match="temperature must be > 0, got 0"):
        run(draw(OLD, 2), temperature=0)
