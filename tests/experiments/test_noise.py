"""`noise`: what is lost beyond another method."""

import pytest

from experiments.noise.study import amplified


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
