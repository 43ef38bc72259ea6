"""Properties of every named objective."""

import inspect
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.objectives import OBJECTIVES
from tests.core import reference
from tests.core.cases import SHAPE, arrays, batch_of, poisoned, problem, slopes

pytestmark = pytest.mark.slow

KNOBS: dict[str, dict[str, float]] = {
    name: {
        p.name: p.default
        for p in inspect.signature(fn).parameters.values()
        if p.default is not p.empty
    }
    for name, fn in vars(reference).items()
    if inspect.isfunction(fn) and not name.startswith("_")
}
"""Objective -> the defaults of its formula in `reference`, at which its edges bind in `arrays()`."""
every_objective = pytest.mark.parametrize("name", KNOBS)
SQUARED = {"opmd_kimi", "opmd_kimi_sequence", "oapl", "prime_rl", "distill"}
WEIGHTS = np.random.default_rng(7).uniform(0.5, 1.5, SHAPE)


@cache
def compiled(name):
    """Jitted `(log_probs, batch, knobs) -> (values, gradient of their sum by WEIGHTS)`."""

    @jax.jit
    def compute(log_probs, batch, knobs):
        values, back = jax.vjp(lambda x: OBJECTIVES[name](x, batch, **knobs), log_probs)
        return values, back(jnp.asarray(WEIGHTS, float))[0]

    return compute


def run(name, a):
    """Values and gradient of one objective on the arrays `a`."""
    knobs = {k: jnp.asarray(v, float) for k, v in KNOBS[name].items()}
    return compiled(name)(jnp.asarray(a.lp, float), batch_of(a), knobs)


def test_the_matrix_below_covers_every_objective_and_each_of_its_knobs():
    """Keyword-only, with the literature's values."""
    assert set(KNOBS) == set(OBJECTIVES)
    for name, objective in OBJECTIVES.items():
        _, _, *knobs = inspect.signature(objective).parameters.values()
        assert {p.kind for p in knobs} <= {inspect.Parameter.KEYWORD_ONLY}, name
        assert all(p.default is not inspect.Parameter.empty for p in knobs), name
        assert {p.name for p in knobs} - {"center_fn"} == set(KNOBS[name]), name


@every_objective
def test_value_and_gradient_are_the_papers_with_its_stopped_terms_held(name):
    a, formula = arrays(), partial(getattr(reference, name), **KNOBS[name])
    with jax.enable_x64():
        values = OBJECTIVES[name](jnp.asarray(a.lp), batch_of(a), **KNOBS[name])
        np.testing.assert_allclose(values, formula(a.lp, a.lp, a), rtol=1e-12, atol=1e-14)
    numeric = slopes(lambda lp: (WEIGHTS * formula(lp, a.lp, a)).sum(), a.lp)
    _, gradient = run(name, a)
    np.testing.assert_allclose(gradient, numeric, rtol=2e-5, atol=2e-6)


@every_objective
def test_what_lies_under_the_mask_cannot_be_seen(name):
    a = poisoned()
    for actual, expected in zip(run(name, a), run(name, arrays()), strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert not np.any(np.asarray(actual)[~a.mask])


@every_objective
def test_a_batch_without_tokens_costs_nothing(name):
    a = arrays()
    a.mask[:] = False
    values, gradient = run(name, a)
    assert not np.any(values)
    assert not np.any(gradient)
    assert float(mean(token_total(values, jnp.asarray(a.mask)))) == 0


@every_objective
def test_the_order_of_a_group_does_not_matter(name):
    a, shuffled = arrays(), arrays()
    order = np.array([2, 0, 3, 1])
    for field in vars(shuffled):
        setattr(shuffled, field, getattr(a, field)[:, order])
    np.testing.assert_allclose(run(name, shuffled)[0], run(name, a)[0][:, order], rtol=1e-6)


@every_objective
def test_extreme_log_ratios_stay_finite_and_the_square_of_an_infinite_one_is_not_nan(name):
    """The last is of a token that the sampler could not draw."""
    far, never = arrays(), arrays()
    far.lp[0, 0, 0], far.old[0, 0, 0] = -1e4, -1.0
    far.lp[0, 1, 0], far.old[0, 1, 0] = -1.0, -1e4
    far.lp[1, 0, 0], far.ref[1, 0, 0] = -1e4, -1.0
    never.old[0, 0, 0] = -np.inf
    for a in (far, never):
        values, gradient = map(np.asarray, run(name, a))
        if a is never and name in SQUARED:
            assert np.isposinf(values).any()
            assert not np.isnan(values).any()
            continue
        assert np.isfinite(values).all()
        assert np.isfinite(gradient).all()


@every_objective
@pytest.mark.parametrize("field", ["lp", "A", "old"])
def test_nan_is_never_swallowed(name, field):
    if (name, field) in {("distill", "A"), ("opmd_pairwise", "old"), ("dpo", "old")}:
        return  # a teacher's log-probs are its only credit; pairs are told by order alone
    a = arrays()
    getattr(a, field)[0, 0, 0] = np.nan
    values = run(name, a)[0]
    assert np.isnan(values[0, 0, 0] if field == "old" else values).any()


@every_objective
def test_bfloat16_is_widened_before_it_is_subtracted(name):
    a = arrays()
    for field in ("lp", "old", "prox", "ref", "A"):
        rounded = jnp.asarray(getattr(a, field), jnp.bfloat16).astype(jnp.float32)
        setattr(a, field, np.asarray(rounded))
    log_probs, batch = jnp.asarray(a.lp, jnp.bfloat16), batch_of(a, jnp.bfloat16)
    values = OBJECTIVES[name](log_probs, batch, **KNOBS[name])
    assert values.dtype == jnp.float32
    np.testing.assert_allclose(values, run(name, a)[0], rtol=1e-5, atol=1e-6)


@every_objective
def test_shapes_masks_and_knobs_are_checked_under_trace(name):
    log_probs, batch, _ = problem()
    loss = jax.jit(lambda x, b: OBJECTIVES[name](x, b, **KNOBS[name]))
    for knob in KNOBS[name].keys() - {"cov_low", "cov_high"}:
        with pytest.raises(ValueError, match=rf"^{knob} must .*, got -0\.1"):
            jax.jit(partial(OBJECTIVES[name], **KNOBS[name] | {knob: -0.1}))(log_probs, batch)
    with pytest.raises(ValueError, match=r"log_probs.*\(2, 4, 4\)"):
        loss(log_probs[..., :4], batch)
    with pytest.raises(ValueError, match=r"mask must be bool, got float32\[2, 4, 5\]"):
        loss(log_probs, batch._replace(mask=batch.mask.astype(float)))
    with pytest.raises(ValueError, match=r"log_probs must be floating point, got int32"):
        loss(log_probs.astype(int), batch)


def test_on_policy_every_ratio_objective_has_the_reinforce_gradient():
    """At pi = pi_k = mu every ratio is 1, no edge binds, and the slope is A."""
    a = arrays()
    a.old = a.prox = a.lp
    _, expected = run("reinforce", a)
    ratios = "grpo off_policy_grpo decoupled cispo sapo m2po dppo_tv kl_cov"
    for name in ratios.split():
        _, gradient = run(name, a)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, err_msg=name)
