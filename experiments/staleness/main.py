"""`staleness`: what do workers, slow and uneven engines do to pace, staleness and Pass@1?

Command: python -m experiments.run staleness --jobs 1
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

    pace      the real collector with engines that sleep, beside the simulation that `plan` rests on
    learning  the default task, batches asked for ahead (lead) and weights pushed every v steps

The queue is first in, first out, so that lead and v alone say which version draws a batch: workers
and engines change how long a run takes, and `learning` need not be run for each of them. Its time
for a fleet is that of the simulation.

Left out: real servers, whose pace is the machine's (`python -m experiments.run gsm8k --rollout.url
... --rollout.workers 8 --schedule.sync-offset 2`, then `python -m experiments.run plan
--validate RUN`), and pushes that cut calls off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from experiments.grid.cell import Cell
from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section
from experiments.grid.tuned import TunedStudy
from experiments.grid.verdicts import Claim
from experiments.staleness.fleet import Fleet, Kind
from experiments.staleness.pace import Pace
from experiments.staleness.report import CLAIMS, LEARNING, PACE, sections
from ogrpo.config.values import require
from ogrpo_plan.simulation import InFlight


@dataclass(frozen=True)
class StalenessStudy(TunedStudy):
    """Fleets of workers on the wall clock, and learning from what is as stale as theirs."""

    name: ClassVar[str] = "staleness"
    question: ClassVar[str] = (
        "What do workers, slow and uneven engines do to pace, staleness and Pass@1?"
    )
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    workers: tuple[int, ...] = (1, 2, 4, 8)
    kinds: tuple[Kind, ...] = ("even", "uneven", "slow server")
    """Engines: all calls alike, log-normal calls, or one server slower than the others."""
    in_flight: tuple[InFlight, ...] = ("wait", "keep")
    """What a push does to calls under way, on the wall clock."""
    leads: tuple[int, ...] = (0, 2, 4, 8)
    """Batches that may be asked for ahead in what learns; the wall clock has 2."""
    intervals: tuple[int, ...] = (1, 5)
    """Steps between two pushes in what learns; the wall clock has 1."""
    pace: Pace = field(default_factory=Pace)
    """Steps and scale of the wall clock."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("workers", "kinds", "in_flight", "leads", "intervals"):
            require(len(getattr(self, name)) > 0, f"{name} is empty: give at least one")
        require(self.pace.fleet == Fleet(), "pace.fleet is the study's: leave it out")
        require("abort" not in self.in_flight, "in-flight has abort: give wait or keep")

    def quickened(self) -> Self:
        """Two workers, two leads, a faster clock."""
        few: dict[str, Any] = {"workers": (1, 2), "leads": (0, 2), "intervals": (1,)}
        pace = replace(self.pace, steps=8, scale=0.01)
        return replace(super().quickened(), in_flight=("keep",), pace=pace, **few)

    def places(self) -> Sequence[Variant]:
        """Every lead with every interval."""
        return [
            self.place(
                LEARNING,
                {"lead": lead, "v": v},
                {"schedule": {"sync_offset": lead, "sync_interval": v}},
            )
            for v in self.intervals
            for lead in self.leads
        ]

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """The cells that figures are of: what learns, and the collector's pace."""
        return [*super().comparing(rows), *self.paces()]

    def paces(self) -> list[Cell]:
        """The collector on the wall clock."""
        return [
            Cell(
                PACE,
                "exact",
                replace(self.pace, fleet=Fleet(workers, kind, flying), seed=seed),
                {"engines": kind, "in flight": flying, "workers": workers},
                measure="experiments.staleness.pace:measure",
            )
            for seed in self.seeds
            for kind in self.kinds
            for flying in self.in_flight
            for workers in self.workers
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Pace beside the simulation, then what staleness does to learning."""
        return sections(rows, self.workers, [kind for kind in self.kinds if kind != "slow server"])
