"""`presets`: what does each preset of the default task reach?

Command: python -m experiments.run presets
Hardware and time: two CPU cores, 72 runs of about a minute.

Each preset has its own learning rate, the best of three on tuning seeds and validation problems;
the clip with the exact centre is tuned beside the default. The kept rows were made by
runs of `gsm8k --preset PRESET`, of which the first and the last evaluation are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from experiments.grid.cell import Cell
from experiments.grid.columns import SPENT, plus_minus, score
from experiments.grid.rows import SCORE, Rows, groups, of_labels, reported
from experiments.grid.study import Stage, Study
from experiments.grid.tables import Section, Table, setting_column
from experiments.grid.variants import Variant, best_variants, cells_of, changed
from experiments.grid.verdicts import claim
from ogrpo.config.train import TrainConfig
from ogrpo.setup.presets import make_preset
from ogrpo.system.values import Count, require

RATES = (2.5e-4, 5e-4, 1e-3)
EXACT = "default, exact centre"
DRAWN = "positives, 8 draws"
"""A quarter of the default's completions, in its groups: what `reuse` was before the ladder."""
TUNED: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("default", "v1-i1", "v1-i1-masked", "v10-i1"), RATES),
    "v1-i10": (5e-5, 1e-4, 2e-4),
    DRAWN: RATES,
    EXACT: RATES,
}
"""The learning rates tried for each preset."""
SCORES = {"sampled": SCORE, "greedy": "pass@1/greedy", "Pass@8": "pass@8/sampled"}
CLAIMS = (
    claim("Table 1, 240 steps: v10-i1 does as well as v1-i1", "v10-i1", "not below", "v1-i1"),
    claim("Table 1, 240 steps: masking helps", "v1-i1-masked", "above", "v1-i1"),
    claim("240 steps: ten updates a batch gain", "v1-i10", "above", "v1-i1"),
    claim(
        "a quarter, drawn eight times, does as well as the default", DRAWN, "not below", "default"
    ),
    claim("a quarter, eight draws: as well as v1-i1", DRAWN, "not below", "v1-i1"),
)
"""Of the presets' runs, four times as long as those of the studies."""


@dataclass(frozen=True)
class PresetsStudy(Study):
    """Presets, each at the best of three learning rates."""

    name = "presets"
    question = "What does each preset of the default task reach?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"presets": TUNED}
    few: ClassVar = {"presets": ("v1-i1", "v10-i1")}

    steps: Count = 240
    """Steps of the default; the others' runs are scaled alike."""
    seeds: tuple[int, ...] = (30, 31, 32, 33, 34)
    """Seeds that figures are of; nothing is chosen on them."""
    presets: tuple[str, ...] = tuple(TUNED)
    """Which to run, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        taken = {name: getattr(self.base, name) for name in ("evaluation", "warm_start", "data")}
        message = "--base has only evaluation, warm-start and data here: a preset has the rest"
        require(self.base == replace(TrainConfig(), **taken), message)

    def variants(self) -> list[Variant]:
        """Returns every preset at every rate that is tried for it."""
        return [
            Variant(name, self.preset(name)).with_rate(rate)
            for name in self.presets
            for rate in TUNED[name]
        ]

    def preset(self, name: str) -> TrainConfig:
        """Returns the preset's config, evaluated before and after."""
        if name == DRAWN:
            buffer = {"groups": 64, "sampler": "uniform", "refuse_zero_variance": True}
            drawn = {"schedule": {"replay": 8, "steps": 60}, "replay": buffer}
            config = changed(TrainConfig(), {"algorithm": "positives", **drawn})
        else:
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
            best = best_variants(rows, variants, self.tuning_seeds)
            return cells_of([v for v in best if v.label != EXACT], "report", self.seeds)

        return (lambda _: cells_of(variants, "tuning", self.tuning_seeds), comparing)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the final scores of each preset, beside the start."""
        runs = of_labels(reported(rows), [*TUNED])
        columns = [*(column.of for column in SPENT), *map(score, SCORES.values())]
        setting = setting_column(rows)
        lines = []
        for trials in groups(runs).values():
            rate = setting(trials).removeprefix("rate ")
            lines.append([f"`{trials[0]['label']}`", rate, *(column(trials) for column in columns)])
        starts = [row["evaluations"] for row in runs if row["label"] == runs[0]["label"]]
        begin = [
            plus_minus([scores[name][0] for scores in starts]) if starts else "–"
            for name in SCORES.values()
        ]
        heads = ("preset", "learning rate", "completions", "updates", *SCORES)
        table = Table("scores", heads, [["before training", "", "", "", *begin], *lines])
        text = "Final held-out scores over seeds that nothing was chosen on."
        return [Section("Scores", text, [table])]
