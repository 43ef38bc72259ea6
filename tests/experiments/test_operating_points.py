"""The study of operating points: what a target costs, and how a point is chosen for a budget."""

import pytest

from experiments.grid.figures import AXES
from experiments.grid.tables import corrected
from experiments.operating_points.study import (
    ONCE,
    OperatingPointsStudy,
    at,
    budget_table,
    cost_table,
    reached,
)
from tests.experiments.synthetic import grid

pytestmark = pytest.mark.slow

STEPS = next(axis for axis in AXES if axis.name == "step")


def run(*scores):
    steps = [10 * n for n in range(len(scores))]
    return {"evaluations": {"step": steps, "pass@1/sampled": [*scores]}}


def test_a_target_is_reached_between_evaluations_where_it_first_is():
    assert reached(run(0.3, 0.4, 0.6, 0.5, 0.9), STEPS, 0.5) == pytest.approx(15)
    assert reached(run(0.3, 0.4), STEPS, 0.5) is None
    assert reached(run(0.6, 0.2), STEPS, 0.5) == 0
    assert at(run(0.3, 0.4, 0.6), STEPS, 15) == pytest.approx(0.5)
    assert at(run(0.3, 0.4, 0.6), STEPS, 99) == 0.6


def test_the_point_for_a_budget_is_chosen_on_tuning_runs_and_told_of_the_others():
    def score(cell):
        lead = {"replay 8": 0.3, "replay 2": 0.1}.get(cell.label, 0.0)
        bonus = 0.2 if cell.role == "report" and cell.label == "replay 2" else 0.0
        return 0.5 + lead * (cell.role == "tuning") + bonus

    _, rows = grid(OperatingPointsStudy(points=(ONCE, "replay 2", "replay 8")), score)
    (table,) = corrected([budget_table(rows)])
    lines = table.lines
    assert {line[1] for line in lines} == {"replay 8"}
    whole = next(line for line in lines if line[0].endswith(" completions") and "1" in line[0][:1])
    assert whole[2:] == ["0.500 ± 0.000", "0.500 ± 0.000", "+0.000 ± 0.000"]


def test_costs_are_medians_and_a_seed_that_never_reaches_the_target_costs_more_than_any():
    study = OperatingPointsStudy(points=(ONCE,))
    _, rows = grid(study, lambda cell: 0.65 if cell.seed < 13 else 0.4)
    line = cost_table(rows, 0.5).lines[0]
    assert line[3:5] == ["3", "500,000"]  # from .35 to .65: half of the run's million
