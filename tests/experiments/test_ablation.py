"""The study of Algorithm 1's dials: what its cells are, and what its page says of known rows."""

import pytest

from experiments.ablation.study import (
    METHODS,
    AblationStudy,
    communication,
    printed,
    pushes,
    reference_kl,
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
