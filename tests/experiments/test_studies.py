"""Each study's whole grid and page, from rows that cost no training."""

import re

import pytest

from experiments.grid import page
from experiments.grid.cell import check_honest, place_of
from experiments.grid.page import write_page
from experiments.grid.pool import grouped
from experiments.grid.study import parse
from experiments.run import study_of
from ogrpo.config.method import check
from ogrpo.report.page import STYLE, save_figure
from ogrpo.setup.find_task import check_sources
from tests.experiments.synthetic import grid

pytestmark = pytest.mark.slow

STUDIES = {
    "operating-points": (210, 12),
    "ablation": (180, 12),
    "rec": (330, 20),
    "clip-vs-is": (270, 24),
    "noise": (180, 5),
    "boundary": (240, 4),
    "single-rollout": (130, 7),
    "offline": (180, 7),
    "step-rewards": (110, 4),
    "real": (176, 17),
    "ladder": (868, 14),
}
"""Study -> the most cells and the most programs of its grid."""


@pytest.fixture(scope="module", params=STUDIES)
def made(request):
    study = study_of(request.param)()
    return study, *grid(study, without=study.seeds[2:]), *STUDIES[request.param]


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        ("ablation", ["--methods", "v2-i1"], r"methods has 'v2-i1'.*v10-i1"),
        ("offline", ["--batches", "0"], "batches is 0: give at least 1"),
        ("rec", ["--schedules", "interval 3"], r"schedules has 'interval 3': .* interval 1; int"),
        ("noise", ["--flips", "0.1"], r"flips is \(0.1,\).*add 0"),
        ("rec", ["--seeds", "3", "--tuning-seeds", "3"], r"seeds \[3\] are in --seeds and"),
        ("rec", ["--quick", "--from-rows"], "measures too little to be kept"),
        ("bounds", ["--constants.sigma-eps=0"], "sigma-eps is 0"),
    ],
)
def test_what_a_study_does_not_take_is_refused_with_the_remedy(study, options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(study_of(study), options)
    assert stopped.value.code == 2
    assert re.search(message, " ".join(capsys.readouterr().err.replace("│", " ").split()))


def test_every_cell_is_one_that_the_trainer_takes_and_the_grid_is_honest(made):
    _, cells, _, most, programs = made
    check_honest(cells, quick=False)
    assert len({cell.key for cell in cells}) == len(cells) <= most
    assert len(grouped(cells)) <= programs
    for cell in {place_of(cell.label, cell.coordinates): cell for cell in cells}.values():
        check_sources(cell.config)
        check(cell.config)


def test_the_page_has_a_line_for_each_place_and_a_figure_for_each_picture(
    made, tmp_path, unrendered, monkeypatch
):
    study, cells, rows, *_ = made
    if study.name == "boundary":  # all figures are composed, those of one study rendered
        monkeypatch.setitem(STYLE, "figure.dpi", 30)
        monkeypatch.setattr(page, "save_figure", save_figure)
    rows = [row for row in rows if row["seed"] not in study.tuning_seeds[1:]]
    text = write_page(study, rows, [], tmp_path, command="the command").read_text()
    assert all(label in text for label in {cell.label for cell in cells})
    pictures = [p.name for section in study.report(rows) for p in section.pictures]
    assert len(set(pictures)) == len(pictures) == text.count("<figure>") > 0
    names = [table.name for section in study.report(rows) for table in section.tables]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)


def test_quick_takes_few_cells(made):
    quick = type(made[0])().quickened()
    cells, rows = grid(quick)
    check_honest(cells, quick=True)
    assert len(cells) <= 16
    assert quick.report(rows)
