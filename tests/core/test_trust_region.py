"""Three ways to keep near the sampler, behind one interface."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import bounds, objectives, trust_region
from ogrpo.core.aggregate import mean, token_total
from tests.core.cases import of_each_prompt, problem

REGIONS = {
    "penalty": trust_region.dual_penalty(objectives.reinforce, delta=0.01, rate=2.0, initial=0.5),
    "mask": trust_region.sequence_mask(objectives.reinforce, delta=0.05),
    "clip": trust_region.adaptive_clip(
        objectives.grpo, target=0.01, rate=0.1, initial=0.2, smallest=0.05, largest=0.4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REGIONS))
def test_one_step_is_pure_jittable_and_differentiable_and_its_measures_add_up(name):
    region, (log_probs, batch, a) = REGIONS[name], problem()

    @jax.jit
    def step(state, x):
        def total(y):
            return mean(token_total(region.loss(state, y, batch), batch.mask))

        return jax.grad(total)(x), region.update(state, region.measure(x, batch))

    state = region.init()
    gradient, moved = step(state, log_probs)
    again, _ = step(state, log_probs)
    assert np.isfinite(gradient).all()
    assert np.any(gradient)
    assert not np.any(np.asarray(gradient)[~a.mask])
    np.testing.assert_array_equal(gradient, again)
    assert jax.tree.structure(moved) == jax.tree.structure(state)
    parts = of_each_prompt(region.measure, log_probs, batch)
    added = jax.tree.map(lambda *xs: sum(xs), *parts)
    whole = region.measure(log_probs, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), added, whole)


def far_by(batch, a, nats):
    first = tuple(np.argwhere(a.mask)[0])
    return batch._replace(behavior_log_probs=batch.behavior_log_probs.at[first].add(-nats))


@pytest.mark.parametrize(
    ("name", "move", "least", "most"),
    [
        ("penalty", lambda b, a, x: b, 0.5, np.inf),
        ("penalty", lambda b, a, x: b._replace(behavior_log_probs=x), 0, 0),
        ("clip", lambda b, a, x: b, 0.05, 0.05),
        ("clip", lambda b, a, x: far_by(b, a, 60.0), 0.05, 0.05),
        ("clip", lambda b, a, x: far_by(b, a, 1000.0), 0.05, 0.05),
        ("clip", lambda b, a, x: b._replace(behavior_log_probs=x), 0.4, 0.4),
        ("clip", lambda b, a, x: b._replace(mask=b.mask & False), 0.4, 0.4),
    ],
    ids=["far", "near", "far clip", "60 nats", "1000 nats", "near clip", "without tokens"],
)
def test_the_state_rises_while_too_far_and_falls_when_near(name, move, least, most):
    """The penalty does; the clip narrows and widens instead."""
    log_probs, batch, a = problem()
    region, batch = REGIONS[name], move(batch, a, log_probs)
    state, measured = region.init(), region.measure(log_probs, batch)
    for _ in range(60):
        state = region.update(state, measured)
    assert least - 1e-6 <= float(state) <= most + 1e-6


def test_dual_ascent_meets_the_constraint():
    """A bandit that would go to the best arm stops where KL(pi||mu) is delta."""
    mu, r, delta = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.0, 0.2, 1.0]), 0.05
    region = trust_region.dual_penalty(
        partial(objectives.token_loss, surrogate_fn=lambda ratio, adv: ratio * adv),
        delta=delta, rate=0.5, initial=1.0,
    )  # fmt: skip
    batch = objectives.TokenBatch(r[:, None], jnp.ones((3, 1), bool), jnp.log(mu)[:, None])

    def kl(logits):
        return bounds.kl_divergence(jax.nn.softmax(logits), mu)

    def step(_, carry):
        logits, state = carry

        def loss(x):
            tokens = region.loss(state, jax.nn.log_softmax(x)[:, None], batch)
            return mu @ tokens[:, 0]

        measured = trust_region.Total(kl(logits), jnp.asarray(1.0))
        return logits - 0.5 * jax.grad(loss)(logits), region.update(state, measured)

    logits, _ = jax.lax.fori_loop(0, 3000, step, (jnp.log(mu), region.init()))
    assert float(kl(logits)) == pytest.approx(delta, rel=0.02)
    assert float(jax.nn.softmax(logits) @ r) > float(mu @ r) + 0.1


def test_the_mask_silences_sequences_that_are_far_and_no_others():
    log_probs, batch, a = problem()
    loss = REGIONS["mask"].loss((), log_probs, batch)
    ratio = np.exp(a.lp - a.old)
    kl = np.where(a.mask, ratio * np.log(ratio) - ratio + 1, 0).sum(-1)
    kl /= np.maximum(a.mask.sum(-1), 1)
    expected = np.where((kl > 0.05)[..., None], 0, objectives.reinforce(log_probs, batch))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert 0 < (kl > 0.05).sum() < kl.size
