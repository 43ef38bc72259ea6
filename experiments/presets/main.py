"""`presets`: what does each preset of the default task reach?

Command: python -m experiments.run presets
Hardware and time: two CPU cores, 65 runs of about a minute.

Each preset has its own learning rate, the best of three on tuning seeds and validation problems;
the clip with the exact centre is tuned beside the default. The kept rows were made by
runs of `gsm8k --preset PRESET`, of which the first and the last evaluation are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.cell import Cell
from experiments.grid.choose import (
    SCORE,
    Variant,
    chosen,
    groups,
    of_labels,
    report_cells,
    reported,
    tuning_cells,
    with_rate,
)
from experiments.grid.rows import Row
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, Study, require_known
from experiments.grid.tables import Table, average, plus_minus, score, setting_column
from experiments.grid.verdicts import Claim, claim
from ogrpo.cli.options import make_preset
from ogrpo.config.train import TrainConfig

RATES = (2.5e-4, 5e-4, 1e-3)
EXACT = "default, exact centre"
TUNED: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("default", "v1-i1", "v1-i1-masked", "v10-i1"), RATES),
    "v1-i10": (5e-5, 1e-4, 2e-4),
    "reuse": RATES,
    EXACT: RATES,
}
"""The learning rates tried for each preset."""
SCORES = {"sampled": SCORE, "greedy": "pass@1/greedy", "Pass@8": "pass@8/sampled"}
CLAIMS = (
    claim("Table 1, 240 steps: v10-i1 does as well as v1-i1", "v10-i1", "not below", "v1-i1"),
    claim("Table 1, 240 steps: masking helps", "v1-i1-masked", "above", "v1-i1"),
    claim("240 steps: ten updates a batch gain", "v1-i10", "above", "v1-i1"),
    claim("reuse does as well as the default with a quarter", "reuse", "not below", "default"),
    claim("reuse does as well as v1-i1 with a quarter", "reuse", "not below", "v1-i1"),
)
"""Of the presets' runs, four times as long as those of the studies."""


@dataclass(frozen=True)
class PresetsStudy(Study):
    """Presets, each at the best of three learning rates."""

    name: ClassVar[str] = "presets"
    question: ClassVar[str] = "What does each preset of the default task reach?"
    pages: ClassVar[tuple[str, ...]] = ("../README.md", "results.md")
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    steps: int = 240
    """Steps of the default; the others' runs are scaled alike."""
    seeds: tuple[int, ...] = (30, 31, 32, 33, 34)
    """Seeds that figures are of; nothing is chosen on them."""
    presets: tuple[str, ...] = tuple(TUNED)
    """Which to run, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("presets", self.presets, TUNED)

    def quickened(self) -> Self:
        """Two presets for a few steps."""
        return replace(super().quickened(), presets=("v1-i1", "v10-i1"))

    def variants(self) -> list[Variant]:
        """Every preset at every rate that is tried for it."""
        return [
            with_rate(Variant(name, self.preset(name)), rate)
            for name in self.presets
            for rate in TUNED[name]
        ]

    def preset(self, name: str) -> TrainConfig:
        """The preset's config, evaluated before and after."""
        config = make_preset("default" if name == EXACT else name)
        steps = max(config.schedule.steps * self.steps // 240, 1)
        override = replace(config.override, center="exact" if name == EXACT else None)
        return replace(
            config,
            schedule=replace(config.schedule, steps=steps, evaluate_every=steps),
            override=override,
            evaluation=replace(self.base.evaluation, gradient_variance=False),
            warm_start=self.base.warm_start,
            data=self.base.data,
        )

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then presets compared."""
        variants = self.variants()

        def comparing(rows: Rows) -> Sequence[Cell]:
            best = chosen(rows, variants, self.tuning_seeds)
            return report_cells([v for v in best if v.label != EXACT], self.seeds)

        return (lambda _: tuning_cells(variants, self.tuning_seeds), comparing)

    def report(self, rows: Rows) -> Sequence[Section]:
        """What each preset reaches, beside the start."""
        text = "Final held-out scores over seeds that nothing was chosen on."
        return [Section("Scores", text, [scores_table(rows)])]


def scores_table(rows: Sequence[Row]) -> Table:
    """The start, then each preset's final scores."""
    runs = of_labels(reported(rows), [*TUNED])
    columns = [average("completions"), average("updates"), *map(score, SCORES.values())]
    setting = setting_column(rows)
    lines = [
        [
            f"`{trials[0]['label']}`",
            setting(trials).removeprefix("rate "),
            *(column(trials) for column in columns),
        ]
        for trials in groups(runs).values()
    ]
    starts = [row for row in runs if row["label"] == runs[0]["label"]]
    begin = [
        plus_minus([row["evaluations"][name][0] for row in starts]) if starts else "–"
        for name in SCORES.values()
    ]
    heads = ("preset", "learning rate", "completions", "updates", *SCORES)
    return Table("scores", heads, [["before training", "", "", "", *begin], *lines])
