"""`offline`: how fast and how stably does one learn from completions that were drawn once?

Command: python -m experiments.run offline
Hardware and time: two CPU cores, 176 cells of about 4 CPU-seconds and 7 programs to compile.

Open question 2 of arXiv:2505.22257. The warm-started policy draws 15 or 60 batches once; each
method then takes 60 updates on batches drawn from them at random, so that a completion is used four
times or once on average. Beside them stands REINFORCE on fresh samples, with as many completions
(15 batches, each used for one update) and with as many updates (60). Each method has its own
learning rate at each size of the set, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: the other methods of `rec` (`--methods`), more updates (`--steps`), other
sizes (`--batches`), and sets drawn by another policy than the one that is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.offline.methods import CLAIMS, FRESH, METHODS, SEVEN, fixed, fresh
from experiments.offline.report import sections
from ogrpo.config.values import require


@dataclass(frozen=True)
class OfflineStudy(TunedStudy):
    """Methods by the number of completions that were drawn once."""

    name: ClassVar[str] = "offline"
    question: ClassVar[str] = (
        "How fast and how stably does one learn from completions that were drawn once?"
    )
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    methods: tuple[str, ...] = SEVEN
    """Which to run on fixed samples, by name."""
    batches: tuple[int, ...] = (15, 60)
    """Sizes of the fixed set: how many batches of completions the initial policy draws."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike; large ones break most methods here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("methods", self.methods, METHODS)
        least = min(self.batches, default=0)
        require(least > 0, f"batches is {self.batches}: give sizes of at least 1")

    def quickened(self) -> Self:
        """Two methods on one small set."""
        few = replace(super().quickened(), methods=("REINFORCE", "RAFT"))
        return replace(few, batches=(2,))

    def places(self) -> Sequence[Variant]:
        """Every method on every set, and fresh samples: as many completions, as many updates."""
        every = self.evaluate_every(self.steps)
        sizes = [*dict.fromkeys(self.batches)]
        offline = [
            self.place(name, {"batches": size}, METHODS[name], fixed(size, self.steps, every))
            for size in sizes
            for name in self.methods
        ]
        policy = METHODS["REINFORCE"]
        online = [
            self.place(FRESH, {"batches": size}, policy, fresh(size, self.evaluate_every(size)))
            for size in dict.fromkeys((*sizes, self.steps))
        ]
        return [*offline, *online]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Where each method ends, when it fell, and how far that is from fresh samples."""
        return sections(rows, self.methods, self.batches, self.steps)
