"""Each study's whole grid and page, from rows that cost no training."""

import re

import pytest

from experiments.ablation.study import AblationStudy
from experiments.boundary.study import BoundaryStudy
from experiments.clip_vs_is.study import ClipStudy
from experiments.grid.cell import check_honest, place_of
from experiments.grid.page import write_page
from experiments.grid.pool import grouped
from experiments.noise.study import NoiseStudy
from experiments.offline.study import OfflineStudy
from experiments.operating_points.study import OperatingPointsStudy
from experiments.real.study import RealStudy
from experiments.rec.study import RecStudy
from experiments.single_rollout.study import SingleRolloutStudy
from experiments.step_rewards.study import StepRewardsStudy
from ogrpo.config.method import check
from ogrpo.report.plots import STYLE
from ogrpo.setup.sources import check_sources
from tests.experiments.synthetic import grid

pytestmark = pytest.mark.slow

STUDIES = {
    "operating-points": (OperatingPointsStudy, 210, 12),
    "ablation": (AblationStudy, 180, 12),
    "rec": (RecStudy, 330, 20),
    "clip-vs-is": (ClipStudy, 270, 24),
    "noise": (NoiseStudy, 180, 5),
    "boundary": (BoundaryStudy, 240, 4),
    "single-rollout": (SingleRolloutStudy, 130, 7),
    "offline": (OfflineStudy, 180, 7),
    "step-rewards": (StepRewardsStudy, 110, 4),
    "real": (RealStudy, 176, 17),
}
"""Study -> its class, the most cells and the most programs of its grid."""


@pytest.fixture(scope="module", params=STUDIES)
def made(request):
    kind, *limits = STUDIES[request.param]
    study = kind()
    return study, *grid(study), *limits


def test_every_cell_is_one_that_the_trainer_takes_and_the_grid_is_honest(made):
    _, cells, _, most, programs = made
    check_honest(cells, quick=False)
    assert len({cell.key for cell in cells}) == len(cells) <= most
    assert len(grouped(cells)) <= programs
    for cell in {place_of(cell.label, cell.coordinates): cell for cell in cells}.values():
        check_sources(cell.config)
        check(cell.config)


def test_the_page_has_a_line_for_each_place_and_a_figure_for_each_picture(
    made, tmp_path, monkeypatch
):
    monkeypatch.setitem(STYLE, "figure.dpi", 30)
    study, cells, rows, *_ = made
    rows = [row for row in rows if row["seed"] in study.seeds[:2] + study.tuning_seeds[:1]]
    text = write_page(study, rows, [], tmp_path, command=study.command).read_text()
    assert all(label in text for label in {cell.label for cell in cells})
    pictures = [p.name for section in study.report(rows) for p in section.pictures]
    assert len(set(pictures)) == len(pictures) == text.count("<figure>") > 0
    names = [table.name for section in study.report(rows) for table in section.tables]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)


def test_a_page_of_no_row_and_of_half_the_rows_is_made_too(made, tmp_path):
    study, _, rows, *_ = made
    for some in ([], [row for row in rows if row["role"] == "tuning"]):
        assert write_page(study, some, [], tmp_path, command=study.command).is_file()
    assert study.report(rows[::2])


def test_quick_takes_few_cells(made):
    quick = type(made[0])().quickened()
    cells, rows = grid(quick)
    check_honest(cells, quick=True)
    assert len(cells) <= 16
    assert quick.report(rows)
