"""`noise`: does RED-Weight amplify false rewards?

Command: python -m experiments.run noise
Hardware and time: two CPU cores, 180 cells of about 4 CPU-seconds and 4 programs to compile.

A share of the training rewards is told the other way round (`--reward.flip`); held-out answers are
judged as they are. Each method loses some Pass@1 by that; what RED-Weight loses beyond REINFORCE,
seed by seed, is what it amplifies. Beside it stands, without any run, the share of a method's
advantages that lies on completions judged wrongly. Each method has its own learning rate at each
share of flips, the best of `rates` on problems whose judge makes no mistake, as one would have it.

Left out unless asked for: other methods (`--methods`, by the names of `rec`), stale samples
(`--base.schedule.sync-interval`) and flips of one kind of reward alone, which has no option.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.noise.report import CLAIMS, sections
from experiments.rec.methods import METHODS
from ogrpo.config.values import require


@dataclass(frozen=True)
class NoiseStudy(TunedStudy):
    """Methods by the share of rewards that are false."""

    name: ClassVar[str] = "noise"
    question: ClassVar[str] = "Does RED-Weight amplify false rewards?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    methods: tuple[str, ...] = ("REINFORCE", "GRPO", "RED-Drop", "RED-Weight")
    """Which to run, by the names of `rec`; what the others lose is held against the first."""
    flips: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    """Shares of the training rewards that are told the other way round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        require(
            0.0 in self.flips,
            f"flips is {self.flips}: losses are held against true rewards, add 0",
        )

    def quickened(self) -> Self:
        """Two methods on true and on noisy rewards."""
        few = replace(super().quickened(), methods=("REINFORCE", "RED-Weight"))
        return replace(few, flips=(0.0, 0.4))

    def places(self) -> Sequence[Variant]:
        """Every method with every share of flips."""
        return [
            self.place(name, {"flips": flip}, METHODS[name], {"reward": {"flip": flip}})
            for name in self.methods
            for flip in self.flips
        ]

    def stages(self) -> Sequence[Stage]:
        """The cells of one share of flips after those of another: a judge is made for each."""

        def by_flips(stage: Stage) -> Stage:
            return lambda rows: sorted(stage(rows), key=lambda cell: cell.coordinates["flips"])

        return [by_flips(stage) for stage in super().stages()]

    def report(self, rows: Rows) -> Sequence[Section]:
        """What each method loses, what that is beyond the first, and where the noise goes."""
        return sections(rows, self.methods, self.flips)
