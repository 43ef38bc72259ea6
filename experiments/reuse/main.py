"""`reuse`: how many completions does reuse save, at equal final Pass@1?

Command: python -m experiments.run reuse
Hardware and time: two CPU cores; docs/reuse.md has the time and the figures.

Each method gets the same budget of completions and its own learning rate, the best of `rates` on
tuning seeds and validation problems; it is then judged on other seeds and problems. The baselines
use each group once and get the whole budget, and also each of the `shares` of it; the others get
the shares. One that ends where the better baseline with the whole budget ends has saved the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.reuse.methods import BASELINES, CLAIMS, METHODS
from experiments.reuse.report import sections
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import require


@dataclass(frozen=True)
class ReuseStudy(TunedStudy):
    """Methods of reuse at equal budgets of completions."""

    name: ClassVar[str] = "reuse"
    question: ClassVar[str] = "How many completions does reuse save, at equal final Pass@1?"
    pages: ClassVar[tuple[str, ...]] = ("reuse.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS
    evaluations: ClassVar[int] = 6

    steps: int = 120
    """Steps of the baseline with the whole budget."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    shares: tuple[float, ...] = (0.5, 0.25)
    """Shares of the baseline's completions that the others get."""
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3)
    """Learning rates that are tried, for the baseline and the others alike."""
    base: TrainConfig = field(default_factory=TrainConfig)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        for share in self.shares:
            require(0 < share <= 1, f"shares has {share}: give shares in (0, 1]")

    def quickened(self) -> Self:
        """Two methods at one rate each of two."""
        few = replace(super().quickened(), steps=4, shares=(0.5,), rates=(5e-4, 1e-3))
        return replace(few, methods=("on-policy", "positives-4"))

    def report(self, rows: Rows) -> Sequence[Section]:
        """Where each method ends, its curves, and which signal announced a collapse."""
        return sections(rows)

    def budgets(self) -> list[tuple[str, int]]:
        """Methods with their steps, baselines with the whole budget and with the shares."""
        whole = [(name, self.steps) for name in BASELINES if name in self.methods]
        few = [round(self.steps * share) for share in self.shares]
        return list(dict.fromkeys(whole + [(name, n) for n in few for name in self.methods]))

    def places(self) -> list[Variant]:
        """Every method with every budget."""
        return [self.variant(name, steps) for name, steps in self.budgets()]

    def variant(self, name: str, steps: int) -> Variant:
        """A method with a budget."""
        config = METHODS[name](replace(self, steps=steps).configured())
        schedule = config.schedule
        bought = schedule.steps * schedule.prompts * config.rollout.group_size
        return Variant(name, config, {"completions": bought})
