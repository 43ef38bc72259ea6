"""What a cell's hash depends on, and which grids are refused."""

from dataclasses import dataclass, replace

import pytest

from experiments.grid.cell import Cell, Watch, changes, check_honest, flat, plain_config
from experiments.grid.variants import Variant, cells_of
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Knobs
from ogrpo.core.algorithms import ALGORITHMS

CELL = Cell("a", "report", TrainConfig())
SEEDS = (10, 11, 12, 13, 14)


def variants(*rates: float, label: str = "a") -> list[Variant]:
    return [Variant(label, TrainConfig()).with_rate(rate) for rate in rates]


def test_the_key_is_of_what_decides_the_row_alone():
    others = [
        replace(CELL, label="b", role="tuning", coordinates={"v": 1}, setting={"rate": 1e-3}),
        replace(CELL, config=replace(CELL.config)),
    ]
    assert {cell.key for cell in others} == {CELL.key}
    different = [
        replace(CELL, config=replace(CELL.config, seed=1)),
        replace(CELL, config=replace(CELL.config, knobs=Knobs(beta=0.1))),
        replace(CELL, watch=Watch(points=3)),
        replace(CELL, measure="elsewhere:measure"),
    ]
    assert len({CELL.key, *(cell.key for cell in different)}) == 5


def test_a_cell_measured_long_ago_is_found():
    """A new option of the trainer, or another default, belongs in `ADDED` with its old value."""
    assert CELL.key == "8cdfc491d403f939110be89a790b1d1d"


def test_every_option_of_the_trainer_is_hashed():
    def leaves(values):
        return {name for name, _ in values.items()}

    assert leaves(flat(plain_config(TrainConfig()))) > {"seed", "knobs.beta", "replay.half-life"}
    assert plain_config(TrainConfig())["warm_start"]["teacher"]["result_slip"] == 0.15


def test_what_a_hash_cannot_see_is_refused():
    @dataclass(frozen=True)
    class Opaque:
        function: object = len

    with pytest.raises(ValueError, match="a cell's config holds <built-in function len>"):
        _ = replace(CELL, config=Opaque()).key
    own = replace(ALGORITHMS["grpo"], name="mine")
    with pytest.raises(ValueError, match="an algorithm by its name"):
        _ = replace(CELL, config=TrainConfig(algorithm=own)).key


def test_a_row_tells_the_options_that_are_not_the_base():
    config = replace(TrainConfig(), seed=3, knobs=Knobs(beta=0.1))
    assert changes(config, TrainConfig()) == {"seed": 3, "knobs.beta": 0.1}


def test_an_honest_grid_passes():
    cells = [
        *cells_of(variants(1e-3, 1e-4), "tuning", (20, 21)),
        *cells_of(variants(1e-3), "report", SEEDS),
    ]
    check_honest(cells, quick=False)
    splits = {cell.role: cell.config.evaluation.split for cell in cells}
    assert splits == {"tuning": "validation", "report": "test"}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            [
                *cells_of(variants(1e-3), "tuning", (10,)),
                *cells_of(variants(1e-3), "report", SEEDS),
            ],
            r"seeds \[10\] are both for tuning and for the report",
        ),
        (
            cells_of(variants(1e-3), "report", SEEDS[:4]),
            "a is reported from 4 seeds: give at least 5",
        ),
        (
            cells_of([*variants(1e-3, 1e-4), *variants(1e-3, label="b")], "tuning", (20,)),
            "b chooses among 1 settings and a among 2",
        ),
        (
            [
                *cells_of(variants(1e-3), "tuning", (20,)),
                *(Cell("a", "report", replace(TrainConfig(), seed=seed)) for seed in SEEDS),
                Cell("b", "tuning", TrainConfig(seed=20)),
            ],
            r"b seed=20 \(tuning\) is evaluated on the split 'test': use 'validation'",
        ),
    ],
)
def test_a_grid_that_chooses_on_what_it_tells_is_refused(cells, words):
    with pytest.raises(ValueError, match=words):
        check_honest(cells, quick=False)
