"""The study of a real model: what it measures beside a run, on a small decoder."""

from dataclasses import replace

import pytest
from rich.console import Console

from experiments.grid.cell import Cell
from experiments.grid.study import quick_base
from experiments.grid.train import Bench
from experiments.real.measure import MEASURE, TEMPERATURES, trained
from experiments.real.study import on_primary, with_best
from ogrpo.config.train import TrainConfig

ROW = {
    "final": {"pass@1/sampled": 0.2, "pass@1/greedy": 0.4},
    "temperatures": {"1": 0.2, "0.5": 0.5, "0.25": None},
}


def test_the_best_over_temperatures_and_the_first_measure():
    assert with_best(ROW)["final"]["pass@1/best"] == 0.5
    assert on_primary(ROW)["final"]["pass@1/sampled"] == 0.4


@pytest.mark.slow
def test_a_row_has_the_sampled_score_at_every_temperature(tmp_path):
    base = quick_base(TrainConfig())
    schedule = replace(base.schedule, steps=2, evaluate_every=2)
    config = replace(base, schedule=schedule, warm_start=replace(base.warm_start, steps=20))
    bench = Bench(tmp_path, Console(quiet=True))
    try:
        row = trained(Cell("it", "pilot", config, measure=MEASURE), bench)
    finally:
        bench.close()
    assert row["ended"] == "whole"
    assert {*row["temperatures"]} == {"1", *(f"{t:g}" for t in TEMPERATURES)}
    assert row["temperatures"]["1"] == pytest.approx(row["final"]["pass@1/sampled"], abs=1e-3)
    assert all(0 <= score <= 1 for score in row["temperatures"].values())
