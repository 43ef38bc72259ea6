"""`reuse`: how many completions does reuse save, at equal final Pass@1?

Command: python -m experiments.run reuse
Hardware and time: two CPU cores; docs/reuse.md has the time and the figures.

Each method gets the same budget of completions and its own learning rate, the best of `rates` on
tuning seeds and validation problems; it is then judged on other seeds and problems. The baselines
use each group once and get the whole budget, and also each of the `shares` of it; the others get
the shares. One that ends where the better baseline with the whole budget ends has saved the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.cell import Cell
from experiments.grid.choose import Variant, chosen, report_cells, tuning_cells, with_rate
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, Study, require_known
from experiments.reuse.methods import BASELINES, METHODS
from experiments.reuse.report import sections
from ogrpo.trainer.config_update import require


@dataclass(frozen=True)
class ReuseStudy(Study):
    """Methods of reuse at equal budgets of completions."""

    name: ClassVar[str] = "reuse"
    question: ClassVar[str] = "How many completions does reuse save, at equal final Pass@1?"
    page: ClassVar[str | None] = "reuse.md"

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    shares: tuple[float, ...] = (0.5, 0.25)
    """Shares of the baseline's completions that the others get."""
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3)
    """Learning rates that are tried, for the baseline and the others alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        for share in self.shares:
            require(0 < share <= 1, f"shares has {share}: give shares in (0, 1]")
        require(len(self.rates) > 0, "rates is empty: give at least one")

    def quickened(self) -> Self:
        """Two methods at one rate each of two."""
        few = replace(super().quickened(), steps=4, shares=(0.5,), rates=(5e-4, 1e-3))
        return replace(few, methods=("on-policy", "positives-4"))

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then methods compared."""
        return (self.tuning, self.judging)

    def tuning(self, _: Rows) -> Sequence[Cell]:
        """The cells that learning rates are chosen on."""
        return tuning_cells(self.variants(), self.tuning_seeds)

    def judging(self, rows: Rows) -> Sequence[Cell]:
        """The cells that figures are of."""
        best = chosen(rows, self.variants(), self.tuning_seeds)
        return report_cells(best, self.seeds)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Where each method ends, its curves, and which signal announced a collapse."""
        return sections(rows)

    def budgets(self) -> list[tuple[str, int]]:
        """Methods with their steps, baselines with the whole budget and with the shares."""
        whole = [(name, self.steps) for name in BASELINES if name in self.methods]
        few = [round(self.steps * share) for share in self.shares]
        return list(dict.fromkeys(whole + [(name, n) for n in few for name in self.methods]))

    def variants(self) -> list[Variant]:
        """Every method with every budget and rate."""
        return [
            with_rate(self.variant(name, steps), rate)
            for name, steps in self.budgets()
            for rate in self.rates
        ]

    def variant(self, name: str, steps: int) -> Variant:
        """A method with a budget."""
        config = METHODS[name](replace(self, steps=steps).configured())
        schedule = config.schedule
        bought = schedule.steps * schedule.prompts * config.rollout.group_size
        return Variant(name, config, {"completions": bought})
