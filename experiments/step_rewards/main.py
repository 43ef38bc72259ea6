"""`step-rewards`: does a reward for each step of a solution help, on policy and off?

Command: python -m experiments.run step-rewards
Hardware and time: two CPU cores, 108 cells of about 4 CPU-seconds and 4 programs to compile.

Open question 3 of arXiv:2505.22257. A line of a generated problem's answer is right if its equation
holds and its result is that of the worked solution's line (`ogrpo.tasks.step_rewards`); advantages
are then by token, through the same loss (`rec_one_side_is`) as those of the outcome alone. What is
told is Pass@1, which is of the outcome. Each method has its own learning rate at each interval, the
best of `rates` on tuning seeds and validation problems.

What this task can tell is little: half of its problems have a solution of one line, whose reward is
nearly the outcome's, the other half of two, and an answer has 11 tokens. A page's first table says
how often lines and outcome differ in the answers that a run begins with.

Left out unless asked for: other intervals (`--intervals`). What has no option is the same sum of
outcome and steps as one reward at the end, which would part more reward from earlier reward, and
steps on other tasks, whose solutions have no lines to check.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.step_rewards.methods import CLAIMS, METHODS
from experiments.step_rewards.report import sections


@dataclass(frozen=True)
class StepRewardsStudy(TunedStudy):
    """Advantages of outcomes and of lines."""

    name: ClassVar[str] = "step-rewards"
    question: ClassVar[str] = "Does a reward for each step of a solution help, on policy and off?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    intervals: tuple[int, ...] = (1, 20)
    """Steps between two renewals of the sampler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)

    def quickened(self) -> Self:
        """The outcome alone and with steps, on stale samples."""
        few = replace(super().quickened(), methods=("outcome, RLOO", "outcome and steps"))
        return replace(few, intervals=(2,))

    def places(self) -> Sequence[Variant]:
        """Every method at every interval."""
        return [
            self.place(
                name,
                {"sync_interval": interval},
                METHODS[name],
                {"schedule": {"sync_interval": interval}},
            )
            for interval in self.intervals
            for name in self.methods
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """What lines can tell, where each method ends, and its signals on the way."""
        return sections(rows, self.methods, self.intervals)
