import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.config_update import Objective, TrustRegion
from experiments.objectives import check_objective, knobs, metrics_fn, objective_fn, region_fn
from ogrpo.core.objectives import OBJECTIVES, TokenBatch
from ogrpo.training.metrics import PolicyOutput

NAMES = [name for name in OBJECTIVES if name != "red_drop"]


@pytest.fixture
def call():
    """Log-probs and a batch that every objective takes."""
    batch = TokenBatch(
        advantages=jnp.linspace(-1.0, 1.0, 24).reshape(2, 3, 4),
        mask=jnp.ones((2, 3, 4), bool),
        behavior_log_probs=jnp.full((2, 3, 4), -1.3),
        proximal_log_probs=jnp.full((2, 3, 4), -1.1),
        ref_log_probs=jnp.full((2, 3, 4), -1.2),
    )
    return jnp.full((2, 3, 4), -1.0), batch


def traced(wanted):
    return {key: jnp.float32(value) for key, value in knobs(wanted).items()}


@pytest.mark.parametrize("name", NAMES)
def test_without_options_an_objective_has_its_own_defaults(name, call):
    wanted = Objective(name=name)
    check_objective(wanted)
    ours = objective_fn(wanted)(*call, **traced(wanted))
    np.testing.assert_allclose(ours, OBJECTIVES[name](*call), rtol=1e-6)


def test_options_replace_defaults():
    assert knobs(Objective(name="gspo", eps_low=0.1)) == {
        "eps_low": 0.1,
        "eps_high": 4e-4,
        "beta": 0,
    }
    assert knobs(Objective(name="dapo", eps_high=0.3)) == {"eps_low": 0.2, "eps_high": 0.3}
    assert knobs(Objective(beta=0.1))["beta"] == 0.1


def test_the_unit_centre_is_that_of_grpo(call):
    unit = Objective(center="unit", eps_low=0.2, eps_high=0.2)
    ours = objective_fn(unit)(*call, **knobs(unit))
    np.testing.assert_allclose(ours, OBJECTIVES["grpo"](*call), rtol=1e-6)
    exact = objective_fn(Objective())(*call, **knobs(Objective()))
    assert np.abs(np.asarray(ours - exact)).max() > 1e-3


def test_clipping_is_reported_only_where_token_ratios_are_clipped(call):
    log_probs, batch = call
    output = PolicyOutput(log_probs, jnp.ones_like(log_probs))
    reporting = set()
    for name in NAMES:
        wanted = Objective(name=name)
        report = metrics_fn(wanted, TrustRegion())
        if "clipped" in report(output, batch, batch.mask, {**traced(wanted), "region": ()}):
            reporting.add(name)
    assert reporting == {"grpo", "off_policy_grpo", "dapo", "dr_grpo"}


def test_what_needs_more_than_this_command_gives_is_refused():
    assert "key" in inspect.signature(OBJECTIVES["red_drop"]).parameters
    with pytest.raises(ValueError, match="red_drop needs key"):
        check_objective(Objective(name="red_drop"))


WEIGHTS = {  # of a drift pi_k/mu = e^.2 on every token, four tokens a sequence
    "plain": np.exp(0.2),
    "truncated": 1.1,
    "masked": 0.0,
    "sequence_truncated": 1.1,
    "sequence_masked": 0.0,
    "group_normalized": 1.0,
}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("name", ["grpo", "reinforce", "topr"])
def test_a_weight_takes_the_place_of_the_objectives_own_ratio_to_the_sampler(name, weight, call):
    log_probs, batch = call
    wanted = Objective(name=name, weight=weight, weight_cap=1.1)
    ours = objective_fn(wanted)(*call, **knobs(wanted))
    fresh = batch._replace(behavior_log_probs=batch.proximal_log_probs)
    expected = WEIGHTS[weight] * OBJECTIVES[name](log_probs, fresh)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_the_kl_term_is_not_weighed(call):
    free, bound = (Objective(weight="masked", weight_cap=1.1, beta=beta) for beta in (0.0, 0.5))
    gap = objective_fn(bound)(*call, **knobs(bound)) - objective_fn(free)(*call, **knobs(free))
    drift = np.float64(-1.2 + 1.0)  # log pi_ref - log pi
    np.testing.assert_allclose(gap, 0.5 * (np.expm1(drift) - drift), rtol=1e-4)


@pytest.mark.parametrize(("kind", "state"), [("penalty", 0.0), ("mask", ()), ("clip", 0.2)])
def test_a_trust_region_starts_where_the_objective_is(kind, state):
    objective = Objective(name="grpo")
    make = region_fn(TrustRegion(kind=kind), objective)
    first = make(OBJECTIVES["grpo"]).init()
    assert first == () if state == () else float(first) == pytest.approx(state)
    assert region_fn(TrustRegion(), objective) is None


def test_a_clip_that_follows_the_divergence_is_refused_where_nothing_clips():
    with pytest.raises(ValueError, match=r"trust-region\.kind clip .*reinforce"):
        region_fn(TrustRegion(kind="clip"), Objective(name="reinforce"))


def test_a_clip_of_two_widths_cannot_follow_one_divergence():
    with pytest.raises(ValueError, match=r"eps-low is 0\.2 and eps-high 0\.28"):
        region_fn(TrustRegion(kind="clip"), Objective(name="dapo"))


def test_the_clip_that_is_reported_is_the_trust_regions(call):
    log_probs, batch = call
    output = PolicyOutput(log_probs, jnp.ones_like(log_probs))
    report = metrics_fn(Objective(name="grpo"), TrustRegion(kind="clip"))
    wide, narrow = (
        report(output, batch, batch.mask, {**traced(Objective(name="grpo")), "region": width})
        for width in (jnp.float32(0.5), jnp.float32(0.05))
    )
    assert float(wide["clipped"]) == 0  # every ratio is e^.3
    assert float(narrow["clipped/high"]) == pytest.approx(0.5)
    assert float(narrow["trust_region"]) == pytest.approx(0.05)
