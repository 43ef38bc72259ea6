"""`ablation`: what do the dials of Algorithm 1 do, one at a time?

Command: python -m experiments.run ablation
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

The figures and tables of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257) on the
default task: renewing the server every v steps, i updates on a batch, masking, swaps of the
reference, beta, and the centre of the clip. The centre is compared at i = 4: with one update on a
batch the exact one is the ratio itself, and never clips.

Left out for time: Figure 3 and Tables 2-3 have models and data that are not here
(`--base.preset r1-distill-1.5b --base.model.path DIR --base.data.path DIR`); runs are 60 steps and
not 240 (`--steps 240`), with an evaluation every quarter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.ablation.methods import CLAIMS, METHODS
from experiments.ablation.report import sections
from experiments.grid.cell import SIGNALS, Watch
from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim


@dataclass(frozen=True)
class AblationStudy(TunedStudy):
    """Algorithm 1's dials, one at a time."""

    name: ClassVar[str] = "ablation"
    question: ClassVar[str] = "What do the dials of off-policy GRPO do, one at a time?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS
    watch: ClassVar[Watch] = Watch((*SIGNALS, "seconds/sync", "seconds/rollout", "seconds/update"))

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)

    def quickened(self) -> Self:
        """Three methods at one rate."""
        return replace(super().quickened(), methods=("v1-i1", "v1-i1 masked", "v10-i1"))

    def places(self) -> Sequence[Variant]:
        """Every method."""
        return [self.place(name, {}, METHODS[name].changes()) for name in self.methods]

    def report(self, rows: Rows) -> Sequence[Section]:
        """A section for each dial."""
        return sections(rows)
