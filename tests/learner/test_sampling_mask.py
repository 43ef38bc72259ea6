"""A sampler that leaves tokens out, and a policy over what it left: exact over every completion."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import tokens_only
from ogrpo.learner.update import with_sampling_mask
from ogrpo.policy import sample
from ogrpo.policy.sampler import Truncation, truncated
from ogrpo.setup.devices import make_policy_fn
from tests.policy.tiny import make_config, make_params

V, T, EOS, TEMPERATURE = 5, 3, 4, 1.3
CONFIG = make_config(vocab_size=V)
MU, PI = (make_params(CONFIG, seed) for seed in (0, 1))
RULES = {
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
    "all three": {"min_p": 0.05, "top_k": 4, "top_p": 0.9},
}
PROMPT = jnp.array([[1, 2]])
ROWS = sorted({(*row[: row.index(EOS) + 1],) if EOS in row else row for row in product(range(V), repeat=T)})  # fmt: skip
policy = jax.jit(make_policy_fn(CONFIG))


def everything():
    """Every completion there is, and log mu of every token at each of their places."""
    mask = np.array([[t < len(row) for t in range(T)] for row in ROWS])
    ids = np.array([row + (0,) * (T - len(row)) for row in ROWS])
    batch = tokens_only(
        prompt_ids=PROMPT,
        prompt_mask=PROMPT > 0,
        completion_ids=jnp.asarray(ids[None], jnp.int32),
        completion_mask=jnp.asarray(mask[None]),
    )
    batch = jax.tree.map(jnp.asarray, batch)
    tokens = jnp.broadcast_to(jnp.arange(V, dtype=jnp.int32), (1, *ids.shape, V))
    return batch._replace(top_ids=tokens), policy(MU, batch._replace(top_ids=tokens), TEMPERATURE)


def law(rule):
    """The batch as the sampler records it, log mu_K of its tokens, and log mu_K of all."""
    batch, out = everything()
    ids, left = truncated(out.top_log_probs, Truncation(**rule))
    record = jnp.where(jnp.isneginf(left), -1, ids)
    record = jnp.where(batch.completion_mask[..., None], record, -1)
    every = jnp.full(out.top_log_probs.shape, -jnp.inf)
    every = jnp.put_along_axis(every, ids, left, axis=-1, inplace=False)
    drawn = jnp.take_along_axis(every, batch.completion_ids[..., None], axis=-1)[..., 0]
    return batch._replace(top_ids=record), jnp.where(batch.completion_mask, drawn, 0), every


@pytest.mark.parametrize("name", RULES)
def test_the_law_is_by_the_definitions_and_sums_to_one(name):
    rule = {"min_p": 0.0, "top_k": V, "top_p": 1.0, **RULES[name]}
    batch, out = everything()
    _, drawn, every = law(RULES[name])
    is_token = np.asarray(batch.completion_mask)
    laws = (np.exp(np.asarray(x)[is_token]) for x in (out.top_log_probs, every))
    for mu, cut in zip(*laws, strict=True):
        left = sorted(np.flatnonzero(mu >= rule["min_p"] * mu.max()), key=lambda v: -mu[v])
        left = left[: rule["top_k"]]
        share = mu[left] / mu[left].sum()
        count = np.sum(np.cumsum(share) - share < rule["top_p"])
        expected = np.zeros(V)
        expected[left[:count]] = share[:count] / share[:count].sum()
        np.testing.assert_allclose(cut, expected, atol=1e-6)
    np.testing.assert_allclose(np.exp(drawn.sum(axis=-1)).sum(), 1, rtol=1e-5)


few = pytest.mark.parametrize("name", ["top_k", "all three"])
"""Rules whose programs are worth their compilation."""


@few
def test_the_sampler_draws_from_the_law_and_records_what_was_left(name):
    _, drawn, every = law(RULES[name])
    places = {row: n for n, row in enumerate(ROWS)}
    out = sample(
        MU, CONFIG, PROMPT, PROMPT > 0, jax.random.key(3), temperature=TEMPERATURE, greedy=False,
        group_size=256, max_tokens=T, eos_id=EOS, halvings=2, record=V + 1, **RULES[name],
    )  # fmt: skip
    seen = np.zeros(len(ROWS))
    for g, length in enumerate(np.asarray(out.mask[0].sum(axis=-1))):
        n = places[tuple(np.asarray(out.token_ids)[0, g, :length].tolist())]
        seen[n] += 1
        np.testing.assert_allclose(out.log_probs[0, g, :length], drawn[0, n, :length], atol=1e-5)
        for t in range(T):
            ids = np.asarray(out.top_ids)[0, g, t]
            assert np.all((ids < 0) == np.isneginf(np.asarray(out.top_log_probs)[0, g, t]))
            cut = np.full(V, -np.inf)
            cut[ids[ids >= 0]] = np.asarray(out.top_log_probs)[0, g, t][ids >= 0]
            np.testing.assert_allclose(cut, every[0, n, t] if t < length else -np.inf, atol=1e-5)
    chance = np.exp(np.asarray(drawn)[0].sum(axis=-1))
    spread = np.sqrt(256 * chance * (1 - chance))
    assert np.all(np.abs(seen - 256 * chance) <= 5 * spread + 1e-3)


@few
def test_ratios_have_mean_1_and_the_gradient_is_that_of_the_cut_objective(name):
    batch, drawn, every = law(RULES[name])
    chance = jnp.exp(drawn.sum(axis=-1))[0]
    rewards = jnp.asarray(np.random.default_rng(5).normal(size=len(ROWS)), jnp.float32)
    possible = chance > 0
    kept_policy = with_sampling_mask(make_policy_fn(CONFIG))

    def of_tokens(policy_fn, params):
        log_probs = policy_fn(params, batch, TEMPERATURE).log_probs[0].sum(axis=-1)
        return jnp.where(possible, log_probs, 0)

    def expected_ratio(policy_fn):
        ratio = jnp.exp(of_tokens(policy_fn, PI) - jnp.where(possible, drawn.sum(axis=-1)[0], 0))
        return float(jnp.sum(jnp.where(possible, chance * ratio, 0)))

    assert expected_ratio(kept_policy) == pytest.approx(1, abs=1e-5)
    assert expected_ratio(make_policy_fn(CONFIG)) < 0.95

    def estimate(params):
        now = of_tokens(kept_policy, params)
        ratio = jax.lax.stop_gradient(jnp.exp(now)) / jnp.where(possible, chance, 1)
        return jnp.sum(jnp.where(possible, chance * ratio * rewards * now, 0))

    def objective(params):
        """Computes the objective by enumeration, with the cut policy of each prefix from all log-probs."""
        tokens = jnp.broadcast_to(jnp.arange(V, dtype=jnp.int32), every.shape)
        whole = policy(params, batch._replace(top_ids=tokens), TEMPERATURE).top_log_probs
        cut = jax.nn.log_softmax(jnp.where(jnp.isneginf(every), -1e9, whole), axis=-1)
        picked = jnp.take_along_axis(cut, batch.completion_ids[..., None], axis=-1)[..., 0]
        terms = jnp.where(batch.completion_mask & possible[None, :, None], picked, 0).sum(axis=-1)
        return jnp.sum(jnp.where(possible, jnp.exp(terms[0]) * rewards, 0))

    actual, expected = jax.jit(jax.grad(estimate))(PI), jax.jit(jax.grad(objective))(PI)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_batch_without_the_record_is_refused():
    batch, _, _ = law(RULES["top_k"])
    with pytest.raises(ValueError, match="does not say which tokens its sampler could draw"):
        with_sampling_mask(policy)(PI, batch._replace(top_ids=None), 1.0)
