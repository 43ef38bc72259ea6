"""Measurements of the cells of `bounds`: records, of which claims and plots are made."""

from dataclasses import dataclass
from typing import Any

import jax

from experiments.bounds.exact import Bandit, Constants, train_bandit
from experiments.bounds.families import SAMPLE_SIZES, clip_record, variances
from experiments.bounds.sampled import train_run
from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.grid.train import Bench
from ogrpo.config.train import TrainConfig
from ogrpo.loop import start

HERE = "experiments.bounds.measure"


@dataclass(frozen=True)
class BanditRun:
    """The main study's update on a table, every sum enumerated."""

    train: TrainConfig
    bandit: Bandit
    constants: Constants

    @property
    def seed(self) -> int:
        """Seed of the table and of its batches."""
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
        """Seed of the run."""
        return self.train.seed


def bandit(cell: Cell, _: Bench) -> dict[str, Any]:
    """Returns a record a step, exact."""
    run: BanditRun = cell.config
    return {"records": [*train_bandit(run.bandit, run.train, run.constants)]}


def pairs(cell: Cell, _: Bench) -> dict[str, Any]:
    """Returns a record a pair, exact."""
    with jax.enable_x64():
        return {"records": [*variances(cell.config.seed)]}


def thresholds(cell: Cell, _: Bench) -> dict[str, Any]:
    """Returns a record a sample size, exact."""
    with jax.enable_x64():
        return {"records": [clip_record(n, cell.config.delta) for n in SAMPLE_SIZES]}


def sampled(cell: Cell, bench: Bench) -> dict[str, Any]:
    """Returns a record a step and one a server period, estimated."""
    run: SampledRun = cell.config
    with bench.parts(run.train) as (_, parts, first):
        records = [*train_run(start(first, parts), parts, run.constants, run.seed)]
    return {"records": rounded(records)}
