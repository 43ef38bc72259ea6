"""`real`: what do the claims of the small decoder show on a real language model?

Command: python -m experiments.run real
Hardware and time: two CPU cores, 176 cells of half an hour each; a GPU takes minutes for one.

SmolLM2-135M-Instruct on word problems in plain English (`--preset smollm2-135m`). What is compared,
by which measure and when it stops is laid down in protocol.md before the confirmation runs. The
first measure is greedy Pass@1, which sharpening the distribution does not raise; the second the
best of sampled Pass@1 over temperatures, the third Pass@8.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from pathlib import Path
from typing import ClassVar, Self

from experiments.grid.cell import SIGNALS, Cell, Watch
from experiments.grid.figures import Picture, all_axes
from experiments.grid.rows import Row, Rows, judged_by, of_labels, reported
from experiments.grid.signals import ending
from experiments.grid.study import Crossing, TunedStudy
from experiments.grid.tables import (
    COMPLETIONS,
    ENTROPY,
    LENGTH,
    UPDATES,
    Column,
    Section,
    claims_table,
    score,
    summary,
)
from experiments.real.measure import MEASURE
from experiments.real.methods import CLAIMS, METHODS
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import TrainConfig
from ogrpo.setup.presets import smollm2_135m

PROTOCOL = Path(__file__).with_name("protocol.md")
PRIMARY = "pass@1/greedy"
COLUMNS = (
    *(COMPLETIONS, UPDATES),
    Column("greedy", score(PRIMARY)),
    Column("best sampled", score("pass@1/best")),
    Column("sampled, T = 1", score()),
    Column("Pass@8", score("pass@8/sampled")),
    LENGTH,
    Column("mismatch", ending("mismatch", ".2g")),
    Column("ESS", ending("ess", ".3f")),
    ENTROPY,
)


def base() -> TrainConfig:
    """Returns the preset with 256 held-out problems, 8 answers to each; steps are the study's."""
    preset = replace(smollm2_135m(), preset="smollm2-135m")
    schedule = replace(
        preset.schedule, steps=Schedule().steps, evaluate_every=Schedule().evaluate_every
    )
    evaluation = replace(preset.evaluation, prompts=256, samples=8)
    return replace(preset, schedule=schedule, evaluation=evaluation)


@dataclass(frozen=True)
class RealStudy(TunedStudy):
    """The claims of docs/results.md on SmolLM2-135M."""

    name = "real"
    question = "What do the claims of the small decoder show on a real language model?"
    evaluations = 3
    watch = Watch((*SIGNALS, "mismatch", "length"))
    measure = PRIMARY
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("v1-i1", "int8"), "steps": 2}

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    rates: tuple[float, ...] = (5e-6, 2e-5, 8e-5)
    """Learning rates that are tried, for every method alike."""
    base: TrainConfig = field(default_factory=base)

    def quickened(self) -> Self:
        """Returns the defaults with --quick: two prompts, too."""
        few = super().quickened()
        small = {
            "evaluation": replace(few.base.evaluation, prompts=2, samples=2),
            "schedule": replace(few.base.schedule, prompts=2),
            "optimizer": replace(few.base.optimizer, microbatches=1),
        }
        return replace(few, base=replace(few.base, **small))

    @property
    def crossing(self) -> Crossing:
        """Every method."""
        return Crossing(self.methods, METHODS)

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells that figures are of, which are scored at several temperatures."""
        return [replace(cell, measure=MEASURE) for cell in super().comparing(rows)]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the three measures, what they cost, and whether a rate is at an edge."""
        rows = of_labels([with_best(row) for row in rows], self.methods)
        digest = hashlib.sha256(PROTOCOL.read_bytes()).hexdigest()
        claims = claims_table(CLAIMS, [judged_by(row, PRIMARY) for row in rows])
        return [
            Section(
                "Protocol",
                f"experiments/real/protocol.md, SHA-256 {digest}: written before the runs.",
            ),
            Section(
                "Claims",
                "Decided on greedy Pass@1, the first measure of protocol.md, by the rule of"
                " docs/studies.md.",
                [replace(claims, name="claims-greedy")],
            ),
            Section(
                "Scores",
                "Held-out problems, mean and 95 % interval over seeds that nothing was chosen on."
                " Best sampled is the highest of the temperatures .25, .5, .75 and 1, so that a"
                " method that sharpens alone gains nothing. Rates are chosen by greedy Pass@1 on"
                f" validation problems, of {', '.join(f'{rate:g}' for rate in self.rates)}.",
                [summary(rows, COLUMNS)],
            ),
            Section("Curves", pictures=[Picture("curves", partial(all_axes, reported(rows)))]),
        ]


def with_best(row: Row) -> Row:
    """Returns the row with the best of sampled Pass@1 over temperatures among its final scores."""
    known = [value for value in row.get("temperatures", {}).values() if value is not None]
    return {**row, "final": {**row["final"], "pass@1/best": max(known, default=nan)}}
