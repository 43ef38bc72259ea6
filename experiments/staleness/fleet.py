"""Fleets: how long calls take, and the pipeline around them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ogrpo.config.values import require
from ogrpo_plan.simulation import Floats, InFlight, Pipeline

Kind = Literal["even", "uneven", "slow server"]
SLOWER = 3.0
"""How many times as long the slow server takes."""
SPREAD = 1.0
"""Standard deviation of the log of uneven calls."""


@dataclass(frozen=True)
class Fleet:
    """Workers that answer calls, and how far they run ahead of a trainer."""

    workers: int = 1
    kind: Kind = "even"
    """All calls alike; log-normal calls of the same mean; or one server slower than the others."""
    in_flight: InFlight = "wait"
    """What a push of weights does to calls under way."""
    lead: int = 2
    """Batches that may be asked for ahead."""
    v: int = 1
    """Steps between two pushes."""
    calls: int = 8
    """In a batch."""
    call: float = 1.0
    """Mean seconds of one."""
    train: float = 2.0
    """Seconds of the trainer's work on a batch."""
    push: float = 0.05
    """Seconds of a push."""

    def __post_init__(self) -> None:
        for name in ("workers", "v", "calls"):
            value = getattr(self, name)
            require(value >= 1, f"fleet.{name} is {value}: give at least 1")
        for name in ("call", "train", "push", "lead"):
            value = getattr(self, name)
            require(value >= 0, f"fleet.{name} is {value}: give at least 0")

    def seconds(self, seed: int, step: int) -> Floats:
        """Of the calls of a step, were every server as fast as the first."""
        if self.kind != "uneven":
            return np.full(self.calls, self.call)
        draws = np.random.default_rng([seed, 6, step]).normal(size=self.calls)
        return self.call * np.exp(SPREAD * draws - SPREAD**2 / 2)

    @property
    def factors(self) -> list[float]:
        """How many times as long each server takes."""
        slow = SLOWER if self.kind == "slow server" else 1.0
        return [1.0] * (self.workers - 1) + [slow]

    def pipeline(self, steps: int) -> Pipeline:
        """As `plan` simulates it."""
        return Pipeline(
            steps=steps,
            workers=self.workers,
            lead=self.lead,
            v=self.v,
            sync_seconds=self.push,
            in_flight=self.in_flight,
        )
