"""Three ways to keep near the sampler, behind one interface, and what is measured beside the loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import bounds, diagnostics, objectives, trust_region
from ogrpo.core.aggregate import combine, mean, token_total
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import moment_ratio
from tests.core.cases import batch_of, of_each_prompt, poisoned, problem

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


def test_diagnose_by_hand_and_by_parts():
    """Of a batch with anything under its mask, too."""
    log_probs, batch, a = problem()
    hidden = poisoned()
    seen, same = (
        {k: float(mean(v)) for k, v in diagnostics.diagnose(*inputs).items()}
        for inputs in ((log_probs, batch), (jnp.asarray(hidden.lp, float), batch_of(hidden)))
    )
    assert same == seen
    m, ratio = a.mask, np.exp(a.lp - a.old)
    expected = {
        "ratio": ratio[m].mean(),
        "ratio_squared": (ratio[m] ** 2).mean(),
        "kl_pi_mu": (ratio * np.log(ratio) - ratio + 1)[m].mean(),
        "kl_mu_pi": (ratio - 1 - np.log(ratio))[m].mean(),
        "kl_pi_ref": (np.exp(a.ref - a.lp) - 1 - (a.ref - a.lp))[m].mean(),
        "mismatch": abs(a.prox - a.old)[m].mean(),
        "entropy": -a.lp[m].mean(),
        "advantage": a.A[m].mean(),
        "advantage_squared": (a.A[m] ** 2).mean(),
    }
    assert seen == pytest.approx(expected, rel=1e-4)
    measured = mean(trust_region.kl_total(log_probs, batch))
    assert float(measured) == pytest.approx(expected["kl_pi_mu"], rel=1e-5)
    parts = of_each_prompt(diagnostics.diagnose, log_probs, batch)
    for name in expected:
        added = combine(*(part[name] for part in parts))
        assert float(mean(added)) == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("far", [44.0, 45.0, 100.0])
def test_a_far_token_leaves_an_effective_size_of_about_one(far):
    delta = jnp.zeros((3, 1000)).at[1, 7].set(far)
    nothing = jnp.zeros_like(delta)
    batch = TokenBatch(nothing, nothing == 0, nothing - far, nothing - far, nothing)
    parts = of_each_prompt(diagnostics.diagnose, delta - far, batch)
    first, second = (combine(*(p[name] for p in parts)) for name in ("ratio", "ratio_squared"))
    assert float(diagnostics.ess_from_moments(first, second)) == pytest.approx(1, rel=1e-4)


def test_a_ratio_for_moments_is_bounded_so_that_many_squares_can_be_added():
    at = moment_ratio(jnp.array([-200.0, 0.0, 19.0, 20.0, 44.4, jnp.inf, jnp.nan]))
    top = np.exp(20.0)
    np.testing.assert_allclose(at, [0, 1, np.exp(19.0), top, top, top, np.nan], rtol=1e-6)
    assert np.isfinite(np.float32((3e10 * top) ** 2))


def test_quantiles_are_of_the_kept():
    ratio, mask = jnp.array([1.0, 2.0, 3.0, 99.0]), jnp.array([True, True, True, False])
    quantiles = diagnostics.ratio_quantiles(ratio, mask, jnp.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(quantiles, [1, 2, 3])
    broken = diagnostics.ratio_quantiles(ratio.at[1].set(jnp.nan), mask, jnp.array([0.0]))
    assert np.isnan(broken).all()
