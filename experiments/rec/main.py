"""`rec`: which off-policy REINFORCE learns where samples are fresh, stale, ahead and fixed?

Command: python -m experiments.run rec
Hardware and time: two CPU cores, 324 cells of about 4 CPU-seconds and 19 programs to compile.

After Figure 3 of "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm" (arXiv:2509.24203):
its methods with the sampler renewed at every step, every 20 steps, ten batches ahead, and never,
and the baselines RLOO, RAFT, DPO and PPO beside them. Each method has its own learning rate at each
schedule, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: on fresh samples all REC methods and OPMD (Kimi, min) have REINFORCE's
gradient, or a multiple of it, and OPMD (pairwise) has RLOO's, since every ratio is 1; there they
are not run. REC-TwoSide-NoIS and REC-Ring-IS, which the authors' runs do not have, and most methods
ahead and offline: `--methods` with `--schedules` runs each method named at each schedule named.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.rec.methods import CLAIMS, METHODS, OFFLINE, SCHEDULES, STALE, WHERE
from experiments.rec.report import sections


@dataclass(frozen=True)
class RecStudy(TunedStudy):
    """Off-policy REINFORCE and its kin by the age of their samples."""

    name: ClassVar[str] = "rec"
    question: ClassVar[str] = (
        "Which group-relative REINFORCE learns where samples are fresh, stale, ahead and fixed?"
    )
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    methods: tuple[str, ...] = ()
    """Which to run at every one of `schedules`, by name; default: a choice for each schedule."""
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    """When samples are drawn: interval 1, interval 20, offset 10, offline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        require_known("schedules", self.schedules, SCHEDULES)

    def quickened(self) -> Self:
        """Two methods on stale and on fixed samples."""
        few = replace(super().quickened(), methods=("REINFORCE", "GRPO"))
        return replace(few, schedules=(STALE, OFFLINE))

    def places(self) -> Sequence[Variant]:
        """Every method at each schedule that it is run at."""
        return [
            self.place(name, {"schedule": when}, METHODS[name], self.scheduled(when))
            for when in self.schedules
            for name in self.methods or WHERE[when]
        ]

    def scheduled(self, when: str) -> dict[str, Any]:
        """A schedule with as many updates as the others have."""
        changes = dict(SCHEDULES[when])
        schedule = dict(changes.get("schedule", {}))
        if when == OFFLINE:
            steps = self.steps + schedule["warmup"]
            every = self.evaluate_every(steps)
            schedule = {"steps": steps, "evaluate_every": every, **schedule}
        return {**changes, "schedule": schedule}

    def report(self, rows: Rows) -> Sequence[Section]:
        """Where each method ends at each schedule, and its signals on the way."""
        return sections(rows)
