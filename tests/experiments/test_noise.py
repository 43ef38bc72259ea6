"""`noise`: what is lost beyond another method, and where false rewards go."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.grid.variants import brief, changed
from experiments.noise.study import amplified, false_share
from experiments.rec.study import METHODS
from ogrpo.config.method import algorithm, knobs


@pytest.mark.parametrize("name", ["REINFORCE", "GRPO", "RED-Drop", "RED-Weight"])
def test_the_share_of_false_advantages_is_that_of_all_groups_enumerated(name):
    size, p, flip = 4, 0.2, 0.3
    config = changed(brief(), METHODS[name])
    true, wrong = (
        np.array([*itertools.product((0, 1), repeat=2 * size)])[:, part]
        for part in (slice(0, size), slice(size, None))
    )
    judged = np.where(wrong, 1 - true, true)
    chances = np.where(true, p, 1 - p) * np.where(wrong, flip, 1 - flip)
    rewards = jnp.asarray(judged, jnp.float32)
    credit = algorithm(config).credit(rewards, knobs(config), jax.random.key(3))
    weighed = np.abs(np.asarray(credit)) * chances.prod(1, keepdims=True)
    expected = (weighed * wrong).sum() / weighed.sum()
    # Which failures RED-Drop leaves out is drawn, here once for each of 256 groups.
    close = 0.03 if name == "RED-Drop" else 1e-5
    assert false_share(name, p, flip, size) == pytest.approx(expected, abs=close)


def test_what_is_amplified_is_the_loss_beyond_the_others_seed_by_seed():
    def row(label, flip, seed, end):
        place = {"label": label, "coordinates": {"flips": flip}, "setting": {}, "seed": seed}
        return {**place, "final": {"pass@1/sampled": end}}

    rows = [
        *(row("A", 0.0, seed, end) for seed, end in [(1, 0.6), (2, 0.7), (3, 0.9)]),
        *(row("A", 0.4, seed, end) for seed, end in [(1, 0.3), (2, 0.5)]),
        *(row("B", 0.0, seed, end) for seed, end in [(2, 0.7), (1, 0.5), (3, 0.1)]),
        *(row("B", 0.4, seed, end) for seed, end in [(1, 0.4), (2, 0.7), (3, 0.1)]),
    ]
    mean, _, high = amplified(rows, "A", "B", 0.4).interval  # .3 - .1 and .2 - 0
    assert mean == pytest.approx(0.2)
    assert high == pytest.approx(mean)
    assert amplified(rows, "A", "B", 0.1).values == ()
