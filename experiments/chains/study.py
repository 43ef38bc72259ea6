"""`chains`: what do objective, prompt mix and reuse save where sharpening does not pay?

Command: python -m experiments.run chains
Hardware and time: one CPU core, about ten seconds of it a run.

The task is `--preset chains`, whose most likely answers are mostly wrong at the start. What is
compared, by which measure and when it stops is laid down in protocol.md before the confirmation
runs: greedy Pass@1 first, Pass@8 second, sampled Pass@1 third. Even seeds begin with the warm start
0, odd ones with 1; differences are seed by seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from experiments.grid.cell import Cell, Role
from experiments.grid.figures import Picture, all_axes
from experiments.grid.rows import SCORE, Row, Rows, final, reported
from experiments.grid.study import INTERVALS, Stage, TunedStudy
from experiments.grid.tables import (
    ENTROPY,
    GREEDY,
    KL,
    SAMPLED,
    UPDATES,
    Column,
    Section,
    Table,
    Value,
    claims_table,
    score,
    summary,
)
from experiments.grid.variants import Changes, Variant, accepted, best_variants, cells_of, joined
from experiments.grid.verdicts import claim, mean_and_interval, of_claim
from experiments.real.study import PRIMARY
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import TrainConfig
from ogrpo.setup.presets import chains

PER_STEP = 64
"""Completions of a step, whatever the groups."""
LARGE, SMALL = {"completions": 3840}, {"completions": 960}
WARM_STARTS = 2
"""Warm starts that the package comes with, by their seeds."""
ONE: Changes = {
    "algorithm": "positives",
    "override": {"advantage": "successes"},
    "rollout": {"group_size": 1},
    "schedule": {"prompts": PER_STEP},
}
"""Successes are imitated, one completion a prompt."""
REUSED: Changes = {
    "schedule": {"replay": 8, "draw": PER_STEP // 2},
    "replay": {"groups": 512, "sampler": "uniform", "refuse_failures": True},
    "optimizer": {"decay": 0.0},
}
"""Eight draws a step from the newest 512 successes, at a constant rate."""
GRPO, SUCCESSES, DRAWN = "on-policy GRPO", "successes", "successes, 8 draws"
TUNED = {GRPO: {}, SUCCESSES: ONE, DRAWN: joined(ONE, REUSED)}
PLACES = ((GRPO, LARGE), (SUCCESSES, LARGE), (SUCCESSES, SMALL), (DRAWN, SMALL))
"""What is tuned and compared, with the completions that each may collect."""
INTERVAL: Changes = {"schedule": {"sync_interval": 20}}
STALE = {
    "REINFORCE, interval 20": joined({"algorithm": "reinforce"}, INTERVAL),
    "GRPO, interval 20": INTERVAL,
}
"""On samples up to 20 steps old, at the learning rate of on-policy GRPO, which nothing tuned."""
SCORES = {"greedy": PRIMARY, "Pass@8": "pass@8/sampled", "sampled": SCORE}
COLUMNS = (*(UPDATES, GREEDY, Column("Pass@8", score(SCORES["Pass@8"])), SAMPLED, KL, ENTROPY),)
QUARTER = "from a quarter of the completions"
CLAIMS = (
    claim("objective and prompt mix gain", SUCCESSES, "above", GRPO, LARGE),
    claim("reuse gains, at equal completions", DRAWN, "above", SUCCESSES, SMALL),
    claim(f"reuse gains, {QUARTER}", DRAWN, "above", SUCCESSES, SMALL, LARGE),
    claim(f"all three gain, {QUARTER}", DRAWN, "above", GRPO, SMALL, LARGE),
    claim("a quarter costs, without reuse", SUCCESSES, "below", SUCCESSES, SMALL, LARGE),
    *(claim(f"{name}: staleness costs", name, "below", GRPO, LARGE) for name in STALE),
)
"""Decided on greedy Pass@1, seed by seed."""


def base() -> TrainConfig:
    """Returns the preset with eight answers to each held-out problem; steps are the study's."""
    preset = replace(chains(), preset="chains")
    schedule = replace(
        preset.schedule, steps=Schedule().steps, evaluate_every=Schedule().evaluate_every
    )
    return replace(
        preset,
        schedule=schedule,
        evaluation=replace(preset.evaluation, samples=8, token_samples=0),
    )


class FromStart(Variant):
    """A variant whose cells begin with the warm start of their seed."""

    def cell(self, role: Role, seed: int) -> Cell:
        """Returns the cell of this seed."""
        made = super().cell(role, seed)
        warm = replace(made.config.warm_start, seed=seed % WARM_STARTS)
        return replace(made, config=replace(made.config, warm_start=warm))


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Returns cells of one warm start after those of another, which is then made ready once."""
    return sorted(cells, key=lambda cell: cell.seed % WARM_STARTS)


@dataclass(frozen=True)
class ChainsStudy(TunedStudy):
    """Objective, prompt mix and reuse on `--preset chains`."""

    name = "chains"
    question = "What do objective, prompt mix and reuse save where sharpening does not pay?"
    pages = ("reuse.md",)
    evaluations = 1
    measure = PRIMARY
    few: ClassVar = {"rates": (1e-3,)}

    seeds: tuple[int, ...] = (10, 11, 12, 13, 14, 15)
    """Seeds that figures are of; nothing is chosen on them."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""
    stale: bool = True
    """Whether stale samples are compared, too."""
    base: TrainConfig = field(default_factory=base)
    """Options of the trainer that hold for all cells."""

    def places(self) -> Sequence[Variant]:
        """Returns what is tuned."""
        return [
            self.collecting(name, TUNED[name], budget["completions"]) for name, budget in PLACES
        ]

    def collecting(self, name: str, changes: Changes, completions: int) -> Variant:
        """Returns a method that may collect so many completions; with --quick a step's."""
        steps = self.steps if self.quick else completions // PER_STEP
        config = accepted(replace(self, steps=steps).configured(), changes)
        return FromStart(name, config, {"completions": completions}, watch=self.watch)

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then methods compared, last those on stale samples."""
        return (*super().stages(), *([self.staling] if self.stale else []))

    def tuning(self, rows: Rows, /) -> Sequence[Cell]:
        """Returns the cells that learning rates are chosen on, each with its warm start."""
        return in_order(super().tuning(rows))

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells that figures are of."""
        return in_order(cells_of(self.best(rows), "report", self.seeds))

    def best(self, rows: Rows) -> list[Variant]:
        """Returns the methods at their best rates."""
        return best_variants(rows, self.variants(), self.tuning_seeds, self.measure)

    def staling(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells of stale samples."""
        rates = [v.setting["rate"] for v in self.best(rows) if v.label == GRPO]
        variants = [
            self.collecting(name, changes, LARGE["completions"]).with_rate(float(rate))
            for rate in rates
            for name, changes in STALE.items()
        ]
        return in_order(cells_of(variants, "report", self.seeds))

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the differences seed by seed, the scores, and curves."""
        scored = {head: [on_score(row, score) for row in rows] for head, score in SCORES.items()}
        lines: list[list[Value]] = [
            [one.text, *(of_claim(one, those) for those in scored.values())]
            for one in CLAIMS
            if of_claim(one, rows).values
        ]
        drawn = partial(all_axes, reported(rows))
        return [
            Section(
                "What is saved",
                "Claims are decided on greedy Pass@1, the first measure of protocol.md.",
                [
                    claims_table(CLAIMS, scored["greedy"]),
                    Table("differences", ("one less the other", *SCORES), lines),
                ],
            ),
            Section("Scores", INTERVALS, [summary(rows, COLUMNS, order=greedy_first)]),
            Section("Curves", pictures=[Picture("curves", drawn)]),
        ]


def on_score(row: Row, score: str) -> Row:
    """Returns the row with this score where the rule of verdicts looks for one."""
    return {**row, "final": {**row["final"], SCORE: row["final"].get(score)}}


def greedy_first(trials: Rows) -> float:
    """Returns a key that orders the highest greedy Pass@1 first."""
    return -mean_and_interval([final(row, PRIMARY) for row in trials])[0]
