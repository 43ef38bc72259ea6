"""`real`: what do the claims of the small decoder show on a real language model?

Command: python -m experiments.run real
Hardware and time: two CPU cores, 176 cells of half an hour each; a GPU takes minutes for one.

SmolLM2-135M-Instruct on word problems in plain English (`--preset smollm2-135m`). What is compared,
by which measure and when it stops is laid down in protocol.md before the confirmation runs. The
first measure is greedy Pass@1, which sharpening the distribution does not raise; the second the
best of sampled Pass@1 over temperatures, the third Pass@8.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from experiments.grid.cell import SIGNALS, Cell, Watch
from experiments.grid.choose import Variant, chosen, report_cells
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.real.measure import MEASURE
from experiments.real.methods import METHODS
from experiments.real.report import PRIMARY, sections
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import TrainConfig
from ogrpo.setup.presets import smollm2_135m


def base() -> TrainConfig:
    """The preset, with 256 held-out problems and 8 answers to each; steps are the study's."""
    preset = replace(smollm2_135m(), preset="smollm2-135m")
    schedule = replace(
        preset.schedule, steps=Schedule().steps, evaluate_every=Schedule().evaluate_every
    )
    evaluation = replace(preset.evaluation, prompts=256, samples=8)
    return replace(preset, schedule=schedule, evaluation=evaluation)


@dataclass(frozen=True)
class RealStudy(TunedStudy):
    """The claims of docs/results.md on SmolLM2-135M."""

    name: ClassVar[str] = "real"
    question: ClassVar[str] = (
        "What do the claims of the small decoder show on a real language model?"
    )
    evaluations: ClassVar[int] = 3
    watch: ClassVar[Watch] = Watch((*SIGNALS, "mismatch", "length"))

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    rates: tuple[float, ...] = (5e-6, 2e-5, 8e-5)
    """Learning rates that are tried, for every method alike."""
    base: TrainConfig = field(default_factory=base)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)

    def quickened(self) -> Self:
        """Two methods, two prompts."""
        few = replace(super().quickened(), methods=("v1-i1", "int8"))
        evaluation = replace(few.base.evaluation, prompts=2, samples=2)
        schedule = replace(few.base.schedule, prompts=2)
        optimizer = replace(few.base.optimizer, microbatches=1)
        small = {"evaluation": evaluation, "schedule": schedule, "optimizer": optimizer}
        return replace(few, steps=2, base=replace(few.base, **small))

    def places(self) -> Sequence[Variant]:
        """Every method."""
        return [self.place(name, {}, METHODS[name]) for name in self.methods]

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """The cells that figures are of, at the rates that are best greedily."""
        best = chosen(rows, self.variants(), self.tuning_seeds, PRIMARY)
        return [replace(cell, measure=MEASURE) for cell in report_cells(best, self.seeds)]

    def report(self, rows: Rows) -> Sequence[Section]:
        """The three measures, what they cost, and whether a rate is at an edge."""
        return sections(rows, self.methods, self.rates)
