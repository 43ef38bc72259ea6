"""Each knob changes the gradient of a method somewhere, and no two algorithms have the same.

The loss of a method is differentiated on one small batch at mu != pi_k = pi, as in a run's first
update on data that another policy drew.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.config.method import acts, algorithm, check, knobs
from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Trajectory
from ogrpo.setup.presets import main_study
from tests.loop.walk import with_options

KNOBS = {
    "beta": ({}, 0.5),
    "eps_low": ({}, 0.9),
    "eps_high": ({}, 5.0),
    **dict.fromkeys(("outer_low", "outer_high"), ({"algorithm": "rec_ring"}, 0.3)),
    "low": ({"algorithm": "cispo"}, 0.9),
    "high": ({"algorithm": "cispo"}, 1.0),
    "cap": ({"algorithm": "dppo_tv"}, 0.5),
    "dual": ({"algorithm": "dual_clip"}, 1.05),
    "delta": ({"algorithm": "two_sided"}, 1.3),
    **dict.fromkeys(("temperature_pos", "temperature_neg"), ({"algorithm": "sapo"}, 3.0)),
    "threshold": ({"algorithm": "m2po"}, 1e-4),
    **dict.fromkeys(("power_pos", "power_neg"), ({"algorithm": "vespo"}, 1.0)),
    **dict.fromkeys(("rate_pos", "rate_neg"), ({"algorithm": "vespo"}, 1.0)),
    **dict.fromkeys(("ratio_cap", "trace_cap"), ({"algorithm": "vtrace"}, 5.0)),
    "discount": ({"algorithm": "ppo"}, 0.5),
    "value_coef": ({"algorithm": "ppo"}, 0.0),
    "decay": ({"algorithm": "vtrace"}, 0.5),
    "tau": ({"algorithm": "red_weight"}, 0.2),
    "coef": ({"algorithm": "opmd_kimi"}, 5.0),
    "step_weight": ({"override.advantage": "step_returns"}, 100.0),
    "slope": ({"algorithm": "oapl"}, 5.0),
    "shift": ({"algorithm": "asymre"}, 1.0),
    "k": ({"algorithm": "maxpo"}, 3.0),
    "overlong": ({"override.advantage": "overlong_standardized"}, 1.0),
    "share": ({"algorithm": "kl_cov"}, 0.9),
    "cov_low": ({"algorithm": "clip_cov", "knobs.share": 0.9}, 0.0),
    "cov_high": ({"algorithm": "clip_cov", "knobs.share": 0.9, "knobs.cov_low": 0.0}, 0.2),
    "entropy_coef": ({"override.bonus": "entropy"}, 0.5),
    "k3_limit": ({"override.gate": ("k3",)}, 10.0),
    "top_share": ({"override.gate": ("top_entropy",)}, 0.7),
    "token_low": ({"override.gate": ("token",)}, 0.99),
    "token_high": ({"override.gate": ("token",)}, 1.01),
    **dict.fromkeys(("sequence_low", "sequence_high"), ({"override.gate": ("sequence",)}, 0.99)),
    "geometric_low": ({"override.gate": ("geometric",)}, 0.1),
    "geometric_high": ({"override.gate": ("geometric",), "knobs.geometric_low": 0.0}, 0.1),
    "negatives_delta": ({"override.gate": ("negatives",)}, 100.0),
    "weight_cap": ({"override.weight": "truncated"}, 0.5),
    "weight_floor": ({"override.weight": "truncated"}, 1.5),
    "weight_decay": ({"override.weight": "trace"}, 0.5),
}
"""Knob -> a setting in which it acts, and a value that shows it."""
WEIGHTED, EXACT = {"override.weight": "truncated"}, {"override.center": "exact"}
BY_LOSS = {method.loss: name for name, method in reversed(ALGORITHMS.items())}
AT_RATIO_ONE = {
    name: WEIGHTED
    for name in BY_LOSS.values()
    if not all(knob.at_one for knob in ALGORITHMS[name].knobs.values())
} | {
    "off_policy_grpo": EXACT,
    "decoupled": {},
}
del AT_RATIO_ONE["clip_cov"]  # whose share as published is of no token in so few
FIXED = {"length", "baseline", "beta", "weight_floor"}
"""Set by the run, or published as 0, which no factor moves."""


def configured(setting):
    config = with_options(main_study(), setting)
    check(config)
    return config


@cache
def gradient_of(method):
    """The compiled gradient of a method with respect to log-probs and values, by its knobs."""
    rng = np.random.default_rng(0)
    shape = (4, 8, 14)
    log_probs, behavior, ref, advantages, steps, values = (
        jnp.asarray(rng.normal(center, 0.5, shape), jnp.float32)
        for center in (-2.0, -2.0, -2.0, 0.0, 0.0, 0.0)
    )
    mask = jnp.asarray(np.arange(14) < rng.integers(4, 15, (*shape[:2], 1)))
    ends = jnp.asarray(rng.integers(0, 2, shape), bool)
    rewards = jnp.asarray(rng.integers(0, 2, shape[:2]), jnp.float32)
    batch = TokenBatch(advantages, mask, behavior, log_probs, ref)
    trajectory = Trajectory(mask, steps, ends, values)

    @jax.jit
    def gradient(numbers):
        def loss(x, v):
            key = jax.random.key(0)
            now = batch._replace(entropy=x**2)
            return mean(method(x, now, rewards, numbers, key, trajectory, values=v))

        return jnp.stack(jax.grad(loss, (0, 1))(log_probs, values))

    return lambda numbers: gradient({name: jnp.float32(value) for name, value in numbers.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_changes_the_gradient(name):
    setting, value = KNOBS[name]
    one, other = configured(setting), configured({**setting, f"knobs.{name}": value})
    gradient = gradient_of(algorithm(one))
    assert algorithm(other) is algorithm(one)
    assert not jnp.array_equal(gradient(knobs(one)), gradient(knobs(other)))


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_RATIO_ONE)
def test_knobs_act_at_a_ratio_of_one_as_gradients_say(name):
    config = configured({"algorithm": name, **AT_RATIO_ONE[name]})
    values, gradient = knobs(config), gradient_of(algorithm(config))
    published = gradient(values)
    for knob in set(values) - FIXED:
        factors = (0.5, 2.0) if knob == "dual" else (0.1, 0.5, 2.0, 10.0)  # dual is above 1
        moved = (gradient({**values, knob: values[knob] * by}) for by in factors)
        depends = any(not jnp.allclose(published, each, rtol=1e-5, atol=1e-8) for each in moved)
        assert acts(config, knob) == depends, knob
