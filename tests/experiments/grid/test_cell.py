"""A cell's hash, the grids that are refused, and the choice of a setting."""

from dataclasses import dataclass, replace

import pytest

from experiments.grid.cell import ADDED, Cell, Watch, changes, check_honest, plain_config
from experiments.grid.variants import Variant, best_variants, cells_of
from ogrpo.config.train import Evaluation, TrainConfig
from ogrpo.config.update import Knobs
from ogrpo.core.algorithms import ALGORITHMS
from tests.experiments.synthetic import row
from tests.loop.walk import SUMS

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
    default = TrainConfig()
    groups = {type(part).__name__: part for part in (default, *vars(default).values())}
    for option, value in ADDED.items():
        group, name = option.split(".")
        assert getattr(groups[group], name) == value


def test_an_added_option_is_told_from_one_of_the_same_name_in_another_group():
    @dataclass(frozen=True)
    class Other:
        seed: int | None = None

    assert ADDED["WarmStart.seed"] is Other().seed
    assert plain_config(Other()) == {"seed": None}


def test_what_a_hash_cannot_see_is_refused():
    @dataclass(frozen=True)
    class Opaque:
        function: object = len

    with pytest.raises(ValueError, match="a cell's config holds <built-in function len>"):
        _ = replace(CELL, config=Opaque()).key
    algorithm = replace(ALGORITHMS["grpo"], name="mine")
    with pytest.raises(ValueError, match="an algorithm by its name"):
        _ = replace(CELL, config=TrainConfig(algorithm=algorithm)).key


def test_a_row_tells_the_options_that_are_not_the_base():
    config = replace(TrainConfig(), seed=3, knobs=Knobs(beta=0.1))
    assert changes(config, TrainConfig()) == {"seed": 3, "knobs.beta": 0.1}


REPORT = cells_of(variants(1e-3), "report", SEEDS)


def test_an_honest_grid_passes():
    cells = [*cells_of(variants(1e-3, 1e-4), "tuning", (20, 21)), *REPORT]
    check_honest(cells, quick=False)
    splits = {cell.role: cell.config.evaluation.split for cell in cells}
    assert splits == {"tuning": "validation", "report": "test"}


TUNED = cells_of(variants(1e-3), "tuning", (10,))
ONE_MORE = [*variants(1e-3, 1e-4), *variants(1e-3, label="b")]
ON_TEST = Cell("b", "tuning", TrainConfig(seed=20))
CHOOSING = Evaluation(split="validation")
ON_A_FILE = Cell("b", "tuning", TrainConfig(seed=20, task=SUMS, evaluation=CHOOSING))
DISHONEST = {
    r"seeds \[10\] are both for tuning and for the report": [*TUNED, *REPORT],
    "a is reported from 4 seeds: give at least 5": REPORT[:4],
    "b chooses among 1 settings and a among 2": cells_of(ONE_MORE, "tuning", (20,)),
    r"b seed=20 \(tuning\) is evaluated on the split 'test': use 'validation'": [ON_TEST, *REPORT],
    "evaluation.split": [ON_A_FILE, *REPORT],
}


@pytest.mark.parametrize(("words", "cells"), DISHONEST.items())
def test_a_grid_that_chooses_on_what_it_tells_is_refused(words, cells):
    with pytest.raises(ValueError, match=words):
        check_honest(cells, quick=False)


TUNING = (20, 21)
BOTH = [
    Variant(label, TrainConfig(algorithm=algorithm)).with_rate(rate)
    for label, algorithm in (("a", "grpo"), ("b", "dapo"))
    for rate in (1e-3, 1e-4)
]
SCORES = {
    ("a", 1e-3): (0.9, 0.1),
    ("a", 1e-4): (0.6, 0.6),
    ("b", 1e-3): (0.7, 0.5),
    ("b", 1e-4): (0.1, 0.9),
}


@pytest.mark.parametrize(
    ("place", "seeds", "changed", "rates"),
    [
        # the best on average over the tuning seeds
        (None, (), {}, {"a": 1e-4, "b": 1e-3}),
        # a setting that diverged loses to one that did not
        (("b", 1e-3), (20,), {"ended": "diverged"}, {"a": 1e-4, "b": 1e-4}),
        # a method that lacks a tuning row is left out
        (("a", 1e-4), (21,), {"key": "of another cell"}, {"b": 1e-3}),
        # a score that is missing is not chosen
        (("a", 1e-4), TUNING, {"final": {"pass@1/sampled": None}}, {"a": 1e-3, "b": 1e-3}),
    ],
)
def test_the_setting_is_the_best_on_the_tuning_rows_alone(place, seeds, changed, rates):
    rows = [row(v.cell("report", 10), 1.0) for v in BOTH if v.setting["rate"] == 1e-3]
    for variant in BOTH:
        here = variant.label, variant.setting["rate"]
        for seed, score in zip(TUNING, SCORES[here], strict=True):
            trial = row(variant.cell("tuning", seed), score)
            rows.append({**trial, **changed} if here == place and seed in seeds else trial)
    best = best_variants(rows, BOTH, TUNING)
    assert {variant.label: variant.setting["rate"] for variant in best} == rates
