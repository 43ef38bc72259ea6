"""The study of fleets: what the collector does with sleeping engines, its cells and its page."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from experiments.grid.cell import Cell, check_honest
from experiments.grid.page import write_page
from experiments.grid.rows import place_in_study
from experiments.staleness.pace import Fleet, Pace, SleepingEngine, measure, run
from experiments.staleness.study import PACE, StalenessStudy
from ogrpo_plan.simulation import simulate
from tests.experiments.synthetic import row

pytestmark = pytest.mark.slow

FAST = Pace(steps=8, scale=1e-4)


@pytest.mark.parametrize("flying", ["wait", "keep"])
@pytest.mark.parametrize("kind", ["even", "uneven", "slow server"])
@pytest.mark.parametrize("v", [1, 3])
def test_staleness_is_of_lead_and_interval_alone_in_the_collector_and_in_the_simulation(
    kind, flying, v
):
    pace = replace(FAST, fleet=Fleet(4, kind, flying, v=v))
    ages = run(pace, SleepingEngine(pace)).ages
    # batch t was asked for at step t - 2, after that step's push, if there was one
    asked = [max(step - 2, 0) for step in range(8)]
    want = [step - v * (then // v) for step, then in enumerate(asked)]
    assert ages == [[age] * 8 for age in want]
    trace = simulate(
        pace.fleet.pipeline(8), partial(pace.fleet.seconds, pace.seed), lambda _: pace.fleet.train
    )
    for step, age in enumerate(want):
        assert set(trace.staleness[trace.call_step == step].tolist()) == {age}


def test_a_slow_server_answers_its_share_and_takes_longer():
    pace = replace(FAST, fleet=Fleet(2, "slow server"))
    engine = SleepingEngine(pace)
    run(pace, engine)
    assert pace.fleet.factors == [1.0, 3.0]
    assert len(engine.calls) == 8 * 8
    assert Fleet(1, "slow server").factors == [3.0]


def test_uneven_calls_have_the_mean_that_was_asked_for():
    fleet = Fleet(kind="uneven", call=2.0)
    calls = np.concatenate([fleet.seconds(0, step) for step in range(4000)])
    assert calls.mean() == pytest.approx(2.0, rel=0.05)
    assert calls.std() > 2.0
    assert fleet.seconds(1, 5).tolist() == fleet.seconds(1, 5).tolist()


def test_what_is_predicted_is_what_plan_simulates():
    pace = replace(FAST, fleet=Fleet(2))
    found = measure(Cell(PACE, "exact", pace), None)
    # two workers need four units for eight calls, beside a trainer that needs two, and a push
    assert found["predicted"]["rate"] == pytest.approx(1 / 4.05, rel=0.02)
    assert found["measured"]["staleness"] == found["predicted"]["staleness"] == 2


def test_its_grid_and_its_page(tmp_path, unrendered):
    study = StalenessStudy()
    cells, rows = [], []
    for stage in study.stages():
        new = [*stage(rows)]
        cells += new
        check_honest(cells, quick=False)
        rows += [row(cell, study.base) if cell.label != PACE else paced(cell) for cell in new]
    assert [cell.role for cell in cells].count("report") == 4 * 2 * 5
    assert [cell.role for cell in cells].count("exact") == 3 * 2 * 4 * 5
    text = write_page(study, rows, [], tmp_path, command=study.command).read_text()
    assert text.count("<figure>") == 2
    for some in ([], rows[::2], [r for r in rows if r["role"] == "tuning"]):
        write_page(study, some, [], tmp_path, command=study.command)


def paced(cell):
    found = {"rate": 0.25, "staleness": 2.0, "staleness/max": 2}
    return {**place_in_study(cell), "measured": found, "predicted": found, "seconds": 1.0}
