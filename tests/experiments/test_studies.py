"""Each study's whole grid, from rows that cost no training."""

import re

import pytest

from experiments.grid.cell import check_honest, place_of
from experiments.grid.main import main
from experiments.grid.pool import grouped
from experiments.grid.study import parse
from experiments.run import study_of
from ogrpo.config.method import check
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


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        ("ablation", ["--methods", "v2-i1"], r"methods has 'v2-i1'.*v10-i1"),
        ("offline", ["--batches", "0"], "batches is 0: give at least 1"),
        ("rec", ["--schedules", "interval 3"], r"schedules has 'interval 3': .* interval 1; int"),
        ("noise", ["--flips", "0.1"], r"flips is \(0.1,\).*add 0"),
        ("rec", ["--seeds", "3", "--tuning-seeds", "3"], r"seeds \[3\] are in --seeds and"),
        ("rec", ["--seeds", "3", "4", "5", "6"], "figures are of at least 5, or give --quick"),
        (
            "rec",
            ["--seeds", "3", "4", "5", "6", "6"],
            r"seeds is \(3, 4, 5, 6, 6\): give each once",
        ),
        ("rec", ["--tuning-seeds"], "tuning-seeds is empty and rates is .*: give seeds"),
        ("ladder", ["--steps", "5"], "steps is 5: a budget of completions says how many"),
        ("rec", ["--quick", "--from-rows"], "measures too little to be kept"),
        ("bounds", ["--constants.sigma-eps=0"], "sigma-eps is 0"),
        ("rec", ["--base.seed", "3"], "base.seed is 3, which changes nothing here: give --seeds"),
        ("rec", ["--base.schedule.evaluate-every=5"], "base.schedule.evaluate-every is 5, which"),
        ("rec", ["--base.stop-when-worse"], "base.stop-when-worse is True, which changes nothing"),
    ],
)
def test_what_a_study_does_not_take_is_refused_with_the_remedy(study, options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(study_of(study), options)
    assert stopped.value.code == 2
    assert re.search(message, " ".join(capsys.readouterr().err.replace("│", " ").split()))


def test_rows_bring_the_options_of_their_study_and_others_are_refused():
    with pytest.raises(ValueError, match="--from-rows has the options that its rows were made by"):
        main(study_of("rec"), ["--from-rows", "--methods", "REINFORCE"])


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_is_one_that_the_trainer_takes_and_the_grid_is_honest(name):
    study, (most, programs) = study_of(name)(), STUDIES[name]
    cells, _ = grid(study, without=study.seeds)
    check_honest(cells, quick=False)
    assert len({cell.key for cell in cells}) == len(cells) <= most
    assert len(grouped(cells)) <= programs
    for cell in {place_of(cell.label, cell.coordinates): cell for cell in cells}.values():
        check_sources(cell.config)
        check(cell.config)


@pytest.mark.parametrize("name", STUDIES)
def test_quick_takes_few_cells(name):
    quick = study_of(name)().quickened()
    cells, rows = grid(quick)
    check_honest(cells, quick=True)
    assert len(cells) <= 16
    assert quick.report(rows)
