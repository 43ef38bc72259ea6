"""`boundary`: where does each scheme collapse as samples grow stale, and what warns first?

Command: python -m experiments.run boundary
Hardware and time: two CPU cores, 240 cells of about 8 CPU-seconds and 4 programs to compile.

Schemes are run at every interval between two synchronisations of the sampler and at every learning
rate; nothing is chosen, so that there is no tuning. A run fell where its Pass@1 was at an
evaluation below .7 of the best before. Signals are judged by whether they were beyond a threshold
before that, the threshold being what one in ten runs of the other seeds that did not fall ever went
beyond; and by how well their mean over the first tenth ranks the runs that fell later, within
equal learning rates, and within equal rates and intervals.

Left out unless asked for: intervals and rates between these (`--intervals`, `--rates`), and schemes
other than a clip, truncated weights, both and neither. An interval as long as the run never renews
the sampler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from experiments.boundary.report import sections
from experiments.boundary.signs import CLAIMS, SCHEMES, WATCHED
from experiments.grid.cell import Cell, Watch
from experiments.grid.choose import Variant, report_cells, with_rate
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, Study, require_known
from experiments.grid.tuned import accepted, brief
from experiments.grid.verdicts import Claim
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import require


@dataclass(frozen=True)
class BoundaryStudy(Study):
    """Schemes by the age of their samples and by learning rate."""

    name: ClassVar[str] = "boundary"
    question: ClassVar[str] = (
        "Where does each scheme collapse as samples grow stale, and which signal warns first?"
    )
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS
    evaluations: ClassVar[int] = 10
    """Falls are known to so fine a grid."""

    steps: int = 100
    """Steps of a run."""
    schemes: tuple[str, ...] = tuple(SCHEMES)
    """Of: neither, clip, weights, clip and weights."""
    intervals: tuple[int, ...] = (1, 10, 30, 100)
    """Steps between two synchronisations of the sampler."""
    rates: tuple[float, ...] = (2e-4, 6e-4, 2e-3)
    """Learning rates."""
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("schemes", self.schemes, SCHEMES)
        for option in ("schemes", "intervals", "rates"):
            require(len(getattr(self, option)) > 0, f"{option} is empty: give at least one")

    def quickened(self) -> Self:
        """One scheme at two intervals and two rates."""
        few = replace(super().quickened(), schemes=("neither",), intervals=(1, 4))
        return replace(few, rates=(1e-3, 1e-1), steps=10)

    def stages(self) -> Sequence[Stage]:
        """All runs at once: nothing is chosen."""
        return (self.runs,)

    def runs(self, _: Rows) -> Sequence[Cell]:
        """Every scheme at every interval and rate."""
        places = [
            self.place(scheme, interval, rate)
            for scheme in self.schemes
            for interval in self.intervals
            for rate in self.rates
        ]
        return report_cells(places, self.seeds)

    def place(self, scheme: str, interval: int, rate: float) -> Variant:
        """A scheme at an interval and a rate, which is a place here and not a setting."""
        stale = {"schedule": {"sync_interval": interval}}
        config = accepted(self.configured(), stale, SCHEMES[scheme])
        where = {"sync_interval": interval, "rate": rate}
        variant = with_rate(Variant(scheme, config, where), rate)
        return replace(variant, setting={}, watch=Watch(WATCHED, points=50))

    def report(self, rows: Rows) -> Sequence[Section]:
        """The map, the warnings, and the signals before falls."""
        return sections(rows, self.intervals, self.rates)
