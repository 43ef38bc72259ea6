"""`reuse`: how many completions does reuse save, at equal final Pass@1?

Command: python -m experiments.run reuse
Hardware and time: two CPU cores; docs/reuse.md has the time and the figures.

Each method gets the same budget of completions and its own learning rate, the best of `rates` on
tuning seeds and validation problems; it is then judged on other seeds and problems. The baselines
use each group once and get the whole budget, and also each of the `shares` of it; the others get
the shares. One that ends where the better baseline with the whole budget ends has saved the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.figures import COLORS, Picture
from experiments.grid.rows import Row, Rows, final, groups, reported
from experiments.grid.signals import SIGNS, early, ended_below_start, rank
from experiments.grid.study import TunedStudy
from experiments.grid.tables import (
    GREEDY,
    SAMPLED,
    UPDATES,
    Column,
    Section,
    Table,
    against,
    mean_score,
    score,
    summary,
)
from experiments.grid.variants import Changes, Variant, accepted, joined
from experiments.grid.verdicts import claim
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import require


def replayed(ratio: int, groups: int = 64, **more: Any) -> Changes:
    """Returns `ratio` batches drawn uniformly from the newest `groups` for each one collected."""
    buffer = {"groups": groups, "sampler": "uniform", **more}
    return {"schedule": {"replay": ratio}, "replay": buffer}


def positives(ratio: int) -> Changes:
    """Returns replayed successes, groups of equal rewards being kept out of the buffer."""
    return {"algorithm": "positives", **replayed(ratio, refuse_zero_variance=True)}


EXACT: Changes = {"override": {"center": "exact"}}
"""The clip around pi_k/mu, which with one update on a draw is the ratio: it never binds."""
ADAPTIVE: Changes = {"reuse": {"adaptive": True}}
"""As many draws a step as the signals allow, at most those of the replay ratio."""

BASELINES = ("on-policy", "positives-1")
"""Methods that use each group once: the others are held against the better of these."""

METHODS: dict[str, Changes] = {
    "on-policy": {},
    "v10-i1": {"schedule": {"sync_interval": 10}},
    "v1-i2": {"schedule": {"updates_per_batch": 2}},
    "v1-i4": {"schedule": {"updates_per_batch": 4}},
    "replay-2": replayed(2),
    "replay-4": replayed(4),
    "replay-8": replayed(8),
    "v1-i4-exact": joined({"schedule": {"updates_per_batch": 4}}, EXACT),
    "replay-4-exact": joined(replayed(4), EXACT),
    "replay-8-exact": joined(replayed(8), EXACT),
    "rec-4": joined(replayed(4), {"algorithm": "rec_one_side"}),
    "red-weight-4": joined(replayed(4), {"algorithm": "red_weight"}),
    "positives-1": {"algorithm": "positives"},
    "positives-2": positives(2),
    "positives-4": positives(4),
    "positives-8": positives(8),
    "adaptive-8": joined(replayed(8), ADAPTIVE),
    "adaptive-fresh-8": joined(replayed(8, groups=16), ADAPTIVE),
    "adaptive-positives-8": joined(positives(8), ADAPTIVE),
}

ENOUGH = ("not below", "positives-1")
EIGHT_FOR_ONE = ("positives-8", "above", "positives-1")
CLIP_FOR_NONE = ("replay-8", "above", "replay-8-exact")
WHOLE, HALF, QUARTER = ({"completions": n} for n in (15360, 7680, 3840))
REUSED = ("positives-8", "positives-4", "adaptive-8", "replay-8")
CLAIMS = (
    *(
        claim(f"with a half, {name} does as well as no reuse", *(name, *ENOUGH), HALF, WHOLE)
        for name in REUSED
    ),
    claim(
        "with a half, positives-8 does better than no reuse",
        *("positives-8", "above", "positives-1", HALF, WHOLE),
    ),
    *(
        claim(f"with a quarter, {name} does as well as no reuse", *(name, *ENOUGH), QUARTER, WHOLE)
        for name in REUSED
    ),
    *(
        claim(f"a half costs {name}, which reuses nothing", name, "below", name, HALF, WHOLE)
        for name in BASELINES
    ),
    claim("at a half, reuse gains: successes, 8 draws for 1", *EIGHT_FOR_ONE, HALF),
    claim("at a quarter, reuse gains: successes, 8 draws for 1", *EIGHT_FOR_ONE, QUARTER),
    claim("at a half, the clip gains with 8 draws", *CLIP_FOR_NONE, HALF),
    claim("at a quarter, the clip gains with 8 draws", *CLIP_FOR_NONE, QUARTER),
)
"""Against the better method without reuse at all completions, and at equal ones."""

PARTS = (0.1, 0.25, 0.5)


@dataclass(frozen=True)
class ReuseStudy(TunedStudy):
    """Methods of reuse at equal budgets of completions."""

    name = "reuse"
    question = "How many completions does reuse save, at equal final Pass@1?"
    pages = ("reuse.md",)
    claims = CLAIMS
    evaluations = 6
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {
        "methods": ("on-policy", "positives-4"),
        "shares": (0.5,),
        "rates": (5e-4, 1e-3),
    }

    steps: int = 120
    """Steps of the baseline with the whole budget."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    shares: tuple[float, ...] = (0.5, 0.25)
    """Shares of the baseline's completions that the others get."""
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3)
    """Learning rates that are tried, for the baseline and the others alike."""
    base: TrainConfig = field(default_factory=TrainConfig)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for share in self.shares:
            require(0 < share <= 1, f"shares has {share}: give shares in (0, 1]")

    def places(self) -> list[Variant]:
        """Returns baselines with the whole budget and the shares, the others with the shares."""
        whole = [(name, self.steps) for name in BASELINES if name in self.methods]
        few = [round(self.steps * share) for share in self.shares]
        budgets = dict.fromkeys(whole + [(name, n) for n in few for name in self.methods])
        return [self.with_budget(name, steps) for name, steps in budgets]

    def with_budget(self, name: str, steps: int) -> Variant:
        """Returns a method with so many steps; its coordinate is the completions of these."""
        config = accepted(replace(self, steps=steps).configured(), METHODS[name])
        collected = steps * config.schedule.prompts * config.rollout.group_size
        return Variant(name, config, {"completions": collected})

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns where each method ends, and which signal announced a collapse."""
        final_rows = reported(rows)
        return [
            Section(
                "Where each method ends",
                "Final held-out Pass@1 on seeds and problems that nothing was chosen on. Mean and"
                " 95 % interval over seeds; the last column is the difference, seed by seed, to the"
                " better method without reuse at the whole budget.",
                [result_table(rows)],
                [Picture("budget", partial(budget_plot, final_rows))],
            ),
            Section(
                "What announces a collapse",
                "Chance that a signal, averaged over the first part of a run, ranks a run that"
                " ended below its start as worse than one that did not; .5 says nothing.",
                [warning_table(rows)],
            ),
        ]


def result_table(rows: Rows) -> Table:
    """Returns where each method ends, and how far from the better baseline."""
    columns = (
        *(UPDATES, SAMPLED, GREEDY, Column("Pass@8, sampled", score("pass@8/sampled"))),
        Column("against no reuse, whole budget", against(best_baseline(reported(rows)))),
    )
    return summary(rows, columns, order=best_first)


def best_first(trials: Rows) -> tuple[float, float]:
    """Returns a key that orders the largest budgets first, then the highest scores."""
    return -budget(trials), -mean_score(trials)


def best_baseline(rows: Rows) -> list[Row]:
    """Returns the runs of the better baseline with the whole budget."""
    runs = [trials for (label, _), trials in groups(rows).items() if label in BASELINES]
    whole = max(map(budget, runs), default=0)
    return max((t for t in runs if budget(t) == whole), key=mean_score, default=[])


def budget(rows: Rows) -> int:
    """Returns the completions that a method may collect."""
    return int(rows[0]["coordinates"]["completions"])


def warning(rows: Rows, name: str, part: float) -> float:
    """Returns the chance that the signal ranks a run that ended below its start above others."""
    values = [SIGNS[name] * early(row, name, part, SIGNS[name]) for row in rows]
    return rank(values, [*map(ended_below_start, rows)])[0]


def warning_table(rows: Rows) -> Table:
    """Returns which signal announces a collapse, and how early."""
    fell = sum(map(ended_below_start, rows))
    columns = ("signal", *(f"first {part:.0%}" for part in PARTS))
    lines = [[name, *(f"{warning(rows, name, part):.2f}" for part in PARTS)] for name in SIGNS]
    text = f"{fell} of {len(rows)} runs, those of tuning included, ended below their start."
    return Table("warning", columns, lines, text)


def budget_plot(rows: Rows) -> Figure:
    """Draws where each method ends, every seed a point."""
    table = groups(rows)
    order = sorted(table, key=lambda place: best_first(table[place]))
    figure = Figure(figsize=(8.0, 1.2 + 0.28 * len(order)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(order):
        scores = [final(row) for row in table[name]]
        axes.plot(scores, [place] * len(scores), "o", color=COLORS[0], alpha=0.5)
        axes.plot([np.mean(scores)], [place], "|", color="black", markersize=16)
    labels = [f"{name[0]}, {budget(table[name]):,}" for name in order]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel("final held-out Pass@1, sampled at T = 1 (bar: mean)")
    axes.set_title("Method and completions collected", loc="left", fontweight="bold")
    return figure
