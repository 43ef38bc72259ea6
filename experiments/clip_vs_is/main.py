"""`clip-vs-is`: is it the clip or the weights that keep off-policy GRPO alive?

Command: python -m experiments.run clip-vs-is
Hardware and time: two CPU cores, 264 cells of about 4 CPU-seconds and 24 programs to compile.

First a clip of pi/mu and the ratio as a weight, alone and together, on samples up to 20 steps old.
Then five ways of weighing by pi_k/mu in three trust regions and in none, with four updates on each
batch and the sampler renewed every 5 batches: there is no such grid with one update on a batch,
where the ratio pi/pi_k that the clip is of is 1. All have group-standardised advantages and means
over tokens. Each combination has its own learning rate, the best of `rates`.

Left out unless asked for: other radii than .01 nats a token (`--delta`), and the clip whose width
follows the divergence (`--regions ... adaptive-clip`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from experiments.clip_vs_is.methods import (
    CLAIMS,
    FOUR,
    MORE_REGIONS,
    REGIONS,
    REUSED,
    REUSED_UPDATES,
    STALE,
    STANDARDIZED,
    WEIGHTS,
    cell,
)
from experiments.clip_vs_is.report import sections
from experiments.grid.choose import Variant
from experiments.grid.runner import Rows
from experiments.grid.study import Section, require_known
from experiments.grid.tuned import TunedStudy, joined
from experiments.grid.verdicts import Claim


@dataclass(frozen=True)
class ClipStudy(TunedStudy):
    """Clips and weights, alone, together, and weights in regions."""

    name: ClassVar[str] = "clip-vs-is"
    question: ClassVar[str] = "Is it the clip or the weights that keep off-policy GRPO alive?"
    pages: ClassVar[tuple[str, ...]] = ("results.md",)
    claims: ClassVar[Sequence[Claim]] = CLAIMS

    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""
    weights: tuple[str, ...] = tuple(WEIGHTS)
    """Ways of weighing: plain, truncated, masked, self-normalised, Retrace."""
    regions: tuple[str, ...] = REGIONS
    """Trust regions: none, penalty, mask, clip, adaptive-clip."""
    alone: tuple[str, ...] = tuple(FOUR)
    """Of the first four: neither, clip alone, weights alone, clip and weights."""
    delta: float = 0.01
    """Radius of penalty, mask and adaptive-clip in nats a token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("weights", self.weights, WEIGHTS)
        require_known("regions", self.regions, MORE_REGIONS)
        require_known("alone", self.alone, FOUR)

    def quickened(self) -> Self:
        """Two of the first four, and one weight in one region."""
        few = replace(super().quickened(), alone=("neither", "clip and weights"))
        return replace(few, weights=("truncated",), regions=("clip",))

    def places(self) -> Sequence[Variant]:
        """The four on stale samples, then the grid with several updates on a batch."""
        four = [self.place(name, {}, FOUR[name], STANDARDIZED, STALE) for name in self.alone]
        steps = max(2 * self.steps // REUSED_UPDATES, 1)
        shorter = {"schedule": {"steps": steps, "evaluate_every": self.evaluate_every(steps)}}
        often = joined(STANDARDIZED, REUSED, shorter)
        grid = [
            self.place(weight, {"region": region}, cell(weight, region, self.delta), often)
            for weight in self.weights
            for region in self.regions
        ]
        return [*four, *grid]

    def report(self, rows: Rows) -> Sequence[Section]:
        """The four, then the grid: final value, speed and stability."""
        return sections(rows)
