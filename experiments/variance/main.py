"""`variance`: what does staleness cost the estimators, and do the proved formulas say so?

Command: python -m experiments.run variance
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

    families  small families of policies: errors from the formulas beside errors of draws
    along     the default task: gradients of a run's last policy from its older ones, by age

`bounds` has the improvement bounds and the certificate; this study has the estimators' errors.

Left out for time: runs are 40 steps on policy at two learning rates, and 64 groups an age
(`--groups 512` narrows the bias, whose square is the noisiest figure here).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from experiments.grid.cell import Cell
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, Study
from experiments.grid.tuned import brief
from experiments.variance.along import Along
from experiments.variance.families import Family
from experiments.variance.report import sections
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import require

FAMILY, RUN = "family", "on-policy run"


@dataclass(frozen=True)
class VarianceStudy(Study):
    """Errors of estimators against staleness."""

    name: ClassVar[str] = "variance"
    question: ClassVar[str] = (
        "What does staleness cost the estimators, and do the proved formulas say so?"
    )
    pages: ClassVar[tuple[str, ...]] = ("results.md",)

    steps: int = 40
    """Steps of a run; its oldest sampler can be so old."""
    rates: tuple[float, ...] = (3e-4, 1e-3)
    """Learning rates of the runs: how fast a policy leaves its sampler."""
    ages: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40)
    """Ages of the samplers, in steps."""
    groups: int = 64
    """Prompts, each with one group an age."""
    family: Family = field(default_factory=Family)
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.rates) > 0, "rates is empty: give at least one")
        require(self.family.seed == 0, f"family.seed is {self.family.seed}: give --seeds")
        for rate in self.rates:
            self.along(self.seeds[0], rate)

    def quickened(self) -> Self:
        """One rate, three ages, few draws."""
        family = Family(tilts=(0.2, 1.2), replicates=500)
        few = {"rates": (1e-3,), "ages": (0, 1, 3), "groups": 16, "family": family}
        return super(VarianceStudy, replace(self, **few)).quickened()

    def stages(self) -> Sequence[Stage]:
        """One: nothing is chosen."""
        return (lambda _: self.cells(),)

    def cells(self) -> list[Cell]:
        """A family and the runs of every seed."""
        here = "experiments.variance"
        families = [
            Cell(FAMILY, "exact", replace(self.family, seed=n), measure=f"{here}.families:measure")
            for n in self.seeds
        ]
        runs = [
            Cell(
                RUN,
                "report",
                self.along(seed, rate),
                {"rate": rate},
                measure=f"{here}.along:measure",
            )
            for seed in self.seeds
            for rate in self.rates
        ]
        return [*families, *runs]

    def along(self, seed: int, rate: float) -> Along:
        """A run that collects on policy and evaluates as little as it may."""
        config = self.configured(seed=seed)
        schedule = replace(config.schedule, sync_interval=1, evaluate_every=self.steps)
        few = replace(config.evaluation, prompts=16, gradient_variance=False)
        optimizer = replace(config.optimizer, learning_rate=rate)
        train = replace(config, schedule=schedule, evaluation=few, optimizer=optimizer)
        return Along(train, self.ages, self.groups)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Formulas beside draws, then what staleness costs."""
        return sections(rows)
