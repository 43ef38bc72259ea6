"""`operating-points`: which buffer, sampler, replay ratio and controller for which budget?

Command: python -m experiments.run operating-points
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

One dial is moved at a time from a point in the middle, with centre 1, where the clip acts on stale
samples; each point has its own learning rate. What it takes to reach a target is read from curves
over six axes, between the evaluations.

Left out for time: pairs of dials (`--points` takes one at a time), other algorithms
(`--base.algorithm positives`), real models, where generating costs more than here beside an update
(`--base.model.path`, `--base.rollout.url`), and runs longer than 60 steps (`--steps`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.cell import SIGNALS, Watch
from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.operating_points.points import CLAIMS, POINTS
from experiments.operating_points.report import sections
from ogrpo.config.values import require


@dataclass(frozen=True)
class OperatingPointsStudy(TunedStudy):
    """Points of operation, one dial moved at a time."""

    name: ClassVar[str] = "operating-points"
    question: ClassVar[str] = "Which buffer, sampler, replay ratio and controller for which budget?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS
    watch: ClassVar[Watch] = Watch(
        (*SIGNALS, "replay/bytes", "replay/groups", "replay/ratio", "reuse/draws")
    )

    points: tuple[str, ...] = tuple(POINTS)
    """Which to run, by name."""
    target: float = 0.5
    """The Pass@1 whose cost is told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("points", self.points, POINTS)
        require(0 < self.target < 1, f"target is {self.target}: give a Pass@1 between 0 and 1")

    def quickened(self) -> Self:
        """Three points at one rate."""
        few = replace(super().quickened(), target=0.05)
        return replace(few, points=("each group once", "replay 4", "controller, at most 4"))

    def places(self) -> Sequence[Variant]:
        """Every point."""
        return [self.place(name, {}, POINTS[name]) for name in self.points]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Costs to the target, the best point for each budget, and what each dial did."""
        return sections(rows, self.target)
