"""A cell's hash, the grids that are refused, and the choice of a setting."""

from dataclasses import dataclass, replace

import pytest

from experiments.grid.cell import ADDED, Cell, Watch, changes, check_honest, plain_config
from experiments.grid.variants import Variant, best_variants, cells_of, settings_count
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Knobs
from ogrpo.core.algorithms import ALGORITHMS
from tests.experiments.synthetic import row

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


# ------------------------------------------------------------------ settings chosen on tuning rows

TUNING = (20, 21)


def tuned(label: str) -> list[Variant]:
    config = TrainConfig(algorithm={"a": "grpo", "b": "dapo"}[label])
    return [Variant(label, config).with_rate(rate) for rate in (1e-3, 1e-4)]


BOTH = [*tuned("a"), *tuned("b")]


def trials(scores: dict[tuple[str, float], tuple[float, float]]):
    return [
        row(variant.cell("tuning", seed), score)
        for variant in BOTH
        for seed, score in zip(TUNING, scores[variant.label, variant.setting["rate"]], strict=True)
    ]


SCORES = {
    ("a", 1e-3): (0.9, 0.1),
    ("a", 1e-4): (0.6, 0.6),
    ("b", 1e-3): (0.7, 0.5),
    ("b", 1e-4): (0.1, 0.9),
}


def of(row, label, rate):
    return (row["label"], row["setting"]["rate"]) == (label, rate)


def diverge(row):
    return {**row, "ended": "diverged"} if of(row, "b", 1e-3) and row["seed"] == 20 else row


def lose(row):
    return None if (row["label"], row["seed"]) == ("a", 21) else row


def unscore(row):
    final = {**row["final"], "pass@1/sampled": None}
    return {**row, "final": final} if of(row, "a", 1e-4) else row


@pytest.mark.parametrize(
    ("change", "rates"),
    [
        (lambda row: row, {"a": 1e-4, "b": 1e-3}),  # the best on average over the tuning seeds
        (diverge, {"a": 1e-4, "b": 1e-4}),  # a setting that diverged loses to one that did not
        (lose, {"b": 1e-3}),  # a method that lacks a tuning row is left out
        (unscore, {"a": 1e-3, "b": 1e-3}),  # a score that is missing is not chosen
    ],
)
def test_the_setting_is_the_best_on_the_tuning_rows_alone(change, rates):
    rows = [changed for row in trials(SCORES) if (changed := change(row)) is not None]
    others = [row(v.cell("report", 10), 1.0) for v in BOTH if v.setting["rate"] == 1e-3]
    best = best_variants([*rows, *others], BOTH, TUNING)
    assert {variant.label: variant.setting["rate"] for variant in best} == rates
    assert set(settings_count(trials(SCORES)).values()) == {2}
