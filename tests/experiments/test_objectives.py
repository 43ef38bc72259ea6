import inspect

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.config import Objective
from experiments.objectives import check_objective, knobs, metrics_fn, objective_fn
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
        if "clipped" in metrics_fn(wanted)(output, batch, batch.mask, traced(wanted)):
            reporting.add(name)
    assert reporting == {"grpo", "off_policy_grpo", "dapo", "dr_grpo"}


def test_what_needs_more_than_this_command_gives_is_refused():
    assert "key" in inspect.signature(OBJECTIVES["red_drop"]).parameters
    with pytest.raises(ValueError, match="red_drop needs key"):
        check_objective(Objective(name="red_drop"))
