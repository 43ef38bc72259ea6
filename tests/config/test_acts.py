"""Whether a knob acts is a table; gradients say that the table is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.config.method import AT_RATIO_ONE, acts, algorithm, knobs
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Override
from ogrpo.core.aggregate import mean
from ogrpo.core.algorithms import ALGORITHMS, PROXIMAL
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Along

WEIGHTED, EXACT = Override(weight="truncated"), Override(center="exact")
METHODS = {
    "off_policy_grpo": EXACT,
    "decoupled": Override(),
    **dict.fromkeys([*filter(None, AT_RATIO_ONE), "grpo", "sapo", "rec_ring"], WEIGHTED),
}
KEPT = {"length", "baseline", "beta", "weight_floor"}
"""Set by the run, or published as 0, which no factor moves."""


def gradient_depends(config, knob):
    """Whether the gradient at mu != pi_k = pi differs where the knob does."""
    method, values = algorithm(config), knobs(config)
    rng = np.random.default_rng(0)
    shape = (4, 8, 6)
    log_probs, behavior, advantages = (
        jnp.asarray(rng.normal(center, 0.5, shape), jnp.float32) for center in (-2.0, -2.0, 0.0)
    )
    rewards = jnp.asarray(rng.integers(0, 2, shape[:2]), jnp.float32)
    batch = TokenBatch(advantages, advantages < np.inf, behavior, log_probs, behavior)
    along = Along(batch.mask, behavior, batch.mask, behavior)

    @jax.jit
    def gradient(moved):
        loss = lambda x: mean(method(x, batch, rewards, moved, jax.random.key(0), along))  # noqa: E731
        return jax.grad(loss)(log_probs)

    def at(factor):
        return gradient(
            {n: jnp.float32(v * (factor if n == knob else 1)) for n, v in values.items()}
        )

    return any(not jnp.array_equal(at(1.0), at(factor)) for factor in (0.1, 0.5, 2.0, 10.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_what_acts_is_what_gradients_say(name):
    config = TrainConfig(algorithm=name, override=METHODS[name])
    for knob in set(knobs(config)) - KEPT:
        assert acts(config, knob) == gradient_depends(config, knob), knob


def test_the_table_names_methods_and_their_knobs():
    for name, silent in AT_RATIO_ONE.items():
        assert not name or set(silent) <= set(ALGORITHMS[name].knobs)
    assert PROXIMAL in algorithm(TrainConfig(override=EXACT)).reads
