"""The studies of Algorithm 1's dials and of operating points: their cells, their pages of known rows."""

import pytest

from experiments.ablation.study import (
    METHODS,
    AblationStudy,
    communication,
    printed,
    pushes,
    reference_kl,
)
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
from ogrpo.setup.presets import paper
from tests.experiments.synthetic import grid

pytestmark = pytest.mark.slow


def test_its_methods_are_the_papers_presets_and_each_can_be_run():
    study = AblationStudy()
    cells, rows = grid(study)
    assert len(cells) == len(rows) == len(METHODS) * (3 * 2 + 5)
    configs = {cell.label: cell.config for cell in cells}
    for label, dials in {
        "v1-i1": {"v": 1},
        "v1-i1 masked": {"v": 1, "masked": True},
        "v10-i1": {"v": 10},
        "v1-i10": {"v": 1, "i": 10},
    }.items():
        mine, theirs = configs[label], paper(rate=1e-3, **dials)
        assert mine.knobs == theirs.knobs
        assert mine.override.mask_zero_variance == theirs.override.mask_zero_variance
        for name in ("sync_interval", "updates_per_batch", "stages", "reset_optimizer"):
            assert getattr(mine.schedule, name) == getattr(theirs.schedule, name), (label, name)


def test_statistics_are_over_the_evaluations_after_the_first_and_pushes_are_steps_over_intervals():
    _, rows = grid(AblationStudy(), lambda cell: 0.55 + 0.01 * (cell.seed % 5))
    line = printed(rows, ("v1-i1",)).lines[0]
    # in quarters from .35, which is before the first step, to .55, .56, .57, .58 and .59
    assert line[3:7] == ["0.405 ± 0.005", "0.570 ± 0.020", "0.487 ± 0.012", "0.487 ± 0.012"]
    assert line[8] == "reference"
    pushes_of = {row["label"]: pushes(row) for row in rows if row["role"] == "report"}
    assert (pushes_of["v1-i1"], pushes_of["v10-i1"], pushes_of["v20-i1"]) == (60, 6, 3)
    assert [line[3] for line in communication(rows).lines] == ["60", "12", "6", "3"]


def test_a_run_that_diverged_before_an_evaluation_leaves_the_page_whole():
    _, rows = grid(AblationStudy())
    run = next(row for row in rows if row["role"] == "report" and row["label"] == "v1-i1")
    run["evaluations"] = {name: values[:1] for name, values in run["evaluations"].items()}
    run["steps"]["kl/pi_ref"] = [0.5, None]
    assert printed(rows, ("v1-i1",)).lines[0][3:7] == ["–"] * 4
    assert reference_kl([run]) == "0.500"


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
