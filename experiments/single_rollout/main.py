"""`single-rollout`: is one completion a prompt enough, and may it be reused off policy?

Command: python -m experiments.run single-rollout
Hardware and time: two CPU cores, 126 cells of about 5 CPU-seconds and 7 programs to compile.

Open question 3 of arXiv:2505.22257. One completion of each of 128 prompts, with a baseline that
needs no siblings, beside groups of 4 and 8: completions and updates are the same for all, and so is
the loss, a clipped importance-weighted mean over tokens (`rec_one_side_is`), which on fresh samples
has REINFORCE's gradient. What differs is the advantage and how many prompts a step sees. The
sampler is renewed at every step, or every 20. Each method has its own learning rate at each
interval, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: other losses (`--loss reinforce` has neither clip nor weights), other
intervals (`--intervals`), rates of the running mean (`--base.override.baseline-rate`, with
`--methods "running baseline"`), and a learned baseline, which is PPO's and no advantage of these
losses: `rec --methods PPO --base.rollout.group-size 1 --base.schedule.prompts 128`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.single_rollout.methods import CLAIMS, METHODS, options
from experiments.single_rollout.report import sections
from ogrpo.config.values import require


@dataclass(frozen=True)
class SingleRolloutStudy(TunedStudy):
    """Baselines with and without siblings, at equal completions and updates."""

    name: ClassVar[str] = "single-rollout"
    question: ClassVar[str] = "Is one completion a prompt enough, and may it be reused off policy?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    intervals: tuple[int, ...] = (1, 20)
    """Steps between two renewals of the sampler."""
    completions: int = 128
    """Completions a step, whatever the groups."""
    loss: str = "rec_one_side_is"
    """The algorithm whose loss all share; its advantage is the method's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        sizes = [METHODS[name].group_size for name in self.methods]
        fits = all(self.completions > 0 and self.completions % size == 0 for size in sizes)
        wanted = f"give a multiple of {' and '.join(map(str, sorted({*sizes})))}"
        require(fits, f"completions is {self.completions}, which are no whole groups: {wanted}")

    def quickened(self) -> Self:
        """One completion a prompt and groups, on stale samples."""
        few = replace(super().quickened(), methods=("running baseline", "GRPO, groups of 8"))
        return replace(few, intervals=(2,), completions=16)

    def places(self) -> Sequence[Variant]:
        """Every method at every interval."""
        known = self.base.evaluation.samples or self.base.rollout.group_size
        scored = {"evaluation": {"samples": known}}  # its default is a method's own group size
        return [
            self.place(
                name,
                {"sync_interval": interval},
                options(name, self.loss, self.completions),
                {"schedule": {"sync_interval": interval}},
                scored,
            )
            for interval in self.intervals
            for name in self.methods
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Where each method ends at each interval, and its signals on the way."""
        return sections(rows, self.methods, self.intervals)
