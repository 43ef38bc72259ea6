"""The rows of the page's table of certificates."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.certificates import draw_pairs, period_table
from benchmarks.rows import read_rows
from tests.loop.test_loop import Run


def test_the_table_counts_what_gained_and_what_was_certified():
    gains, bounds = [0.05, 0.03, 0.01, 0.0, -0.02], [0.02, -0.01, 0.02, 0.01, -0.05]
    rows = [
        {"seed": seed, "gain": gain, "bound": bound, "completions": 384 + 384 * seed}
        for seed in (0, 1)
        for gain, bound in zip(gains[seed:], bounds[seed:], strict=True)
    ]
    first, second, both = period_table(rows)[2:]
    assert first == "| 0 | 5 | 2 | 1 (0.50) | 2 | 1 | 2 | 384 |"
    assert second == "| 1 | 4 | 1 | 0 (0.00) | 2 | 1 | 2 | 768 |"
    assert both == "| all | 9 | 3 | 1 (0.33) | 4 | 2 | 4 | 555 |"


def test_the_page_shows_the_rows_that_are_kept():
    root = Path(__file__).parents[2]
    lines = period_table(read_rows(root / "benchmarks/certificates.jsonl"))
    assert "\n".join(lines) in (root / "docs/certificates.md").read_text()


@pytest.mark.slow
def test_pairs_are_alike_where_the_weights_are_and_values_agree_where_they_are_not():
    """Moved weights: the mean of the ratios' values is that of the pairs, within five errors."""
    run = Run()
    state = run.start()
    draws = draw_pairs(state, run.parts, 64)
    assert draws.old_rewards.size == 64
    assert np.array_equal(draws.old_rewards, draws.new_rewards)
    assert abs(draws.old_gains).max() < 1e-4
    moved = jax.tree.map(lambda x: 1.1 * x, state.train.params)
    draws = draw_pairs(replace(state, train=replace(state.train, params=moved)), run.parts, 2048)
    apart = draws.new_rewards - draws.old_rewards
    assert apart.any()
    values = (2 * draws.old_gains.mean() + draws.new_gains.mean()) / 3
    error = np.hypot(apart.std(), np.concatenate(draws[2:]).std()) / np.sqrt(2048)
    assert abs(values - apart.mean()) < 5 * error
