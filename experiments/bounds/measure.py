"""What the cells of `bounds` measure: each leaves records, of which claims and plots are made."""

from dataclasses import dataclass
from typing import Any

import jax

from experiments.bounds.exact import Bandit, Record, train_bandit
from experiments.bounds.families import clips, variances
from experiments.bounds.sampled import Dials, train_run
from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.grid.train import Bench
from ogrpo.config.train import TrainConfig
from ogrpo.loop import start

HERE = "experiments.bounds.measure"


@dataclass(frozen=True)
class Constants:
    """What the bounds and the certificate take."""

    clip_eps: float = 0.2
    """Width of the clip, on both sides."""
    sigma_eps: float = 0.01
    """Added to the reward's variance before the root is taken."""
    delta: float = 0.05
    """Chance of one certificate to be wrong."""


@dataclass(frozen=True)
class BanditRun:
    """The main study's update on a table, every sum enumerated."""

    train: TrainConfig
    bandit: Bandit
    constants: Constants

    @property
    def seed(self) -> int:
        """Of the table and of its batches."""
        return self.train.seed


@dataclass(frozen=True)
class Pairs:
    """Pairs of policies along random directions."""

    seed: int


@dataclass(frozen=True)
class Thresholds:
    """Clipped means of heavy-tailed ratios."""

    delta: float


@dataclass(frozen=True)
class SampledRun:
    """The default task, its inequalities estimated from fresh samples."""

    train: TrainConfig
    constants: Constants

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.train.seed


def bandit(cell: Cell, _: Bench) -> dict[str, Any]:
    """One record a step, exact."""
    run, dials = cell.config, cell.config.constants
    how = {"clip_eps": dials.clip_eps, "sigma_eps": dials.sigma_eps, "delta": dials.delta}
    return {"records": [*train_bandit(run.bandit, run.train, **how)]}


def pairs(cell: Cell, _: Bench) -> dict[str, Any]:
    """One record a pair, exact."""
    with jax.enable_x64():
        return {"records": [*variances(cell.config.seed)]}


def thresholds(cell: Cell, _: Bench) -> dict[str, Any]:
    """One record a sample size, exact."""
    with jax.enable_x64():
        return {"records": [*clips(cell.config.delta)]}


def sampled(cell: Cell, bench: Bench) -> dict[str, Any]:
    """One record a step and one a server period, estimated."""
    run, dials = cell.config, cell.config.constants
    wanted = Dials(dials.sigma_eps, dials.clip_eps, dials.delta, run.seed)
    with bench.parts(run.train) as (_, parts, first):
        found: list[Record] = [*train_run(start(first, parts), parts, wanted)]
    return {"records": rounded(found)}
