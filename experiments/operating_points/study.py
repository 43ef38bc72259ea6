"""`operating-points`: which buffer, sampler, replay ratio and controller for which budget?

Command: python -m experiments.run operating-points
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

One dial is moved at a time from a point in the middle, with centre 1, where the clip acts on stale
samples; each point has its own learning rate. What it takes to reach a target is read from curves
over six axes, between the evaluations.

Left out for time: pairs of dials (`--points` takes one at a time), other algorithms
(`--base.algorithm positives`), real models, where generating costs more than here beside an update
(`--base.model.path`, `--base.rollout.url`), and runs longer than 60 steps (`--steps`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval

from experiments.grid.cell import SIGNALS, Watch
from experiments.grid.columns import FINAL, Column, against, over_run, plus_minus
from experiments.grid.figures import AXES, Axis, Picture, all_axes, curve
from experiments.grid.rows import SCORE, Row, Rows, groups, of_labels, reported, where
from experiments.grid.study import Crossing, TunedStudy
from experiments.grid.tables import Section, Table, in_order, summary
from experiments.grid.variants import Changes, joined
from experiments.grid.verdicts import Difference, claim


def replay(groups: int, ratio: int, sampler: str = "uniform", **more: Any) -> Changes:
    """Returns batches drawn from a buffer for each one collected."""
    return {"schedule": {"replay": ratio}, "replay": {"groups": groups, "sampler": sampler, **more}}


MIDDLE = replay(64, 4)
"""Four draws for each batch collected, from the groups of the last four steps."""
ADAPTIVE: Changes = {"reuse": {"adaptive": True}}


def groups_of(size: int) -> Changes:
    """Returns as many completions a step in groups of this size; the buffer holds four batches."""
    return {
        "rollout": {"group_size": size},
        "schedule": {"prompts": 128 // size},
        "replay": {"groups": 4 * 128 // size},
    }


POINTS: dict[str, Changes] = {
    "each group once": {"schedule": {"replay": 1}},
    "replay 2": replay(64, 2),
    "replay 4": MIDDLE,
    "replay 8": replay(64, 8),
    "buffer of 16": replay(16, 4),
    "buffer of 256": replay(256, 4),
    "fresh first": replay(64, 4, "fresh"),
    "unused first": replay(64, 4, "unused"),
    "large advantages first": replay(64, 4, "advantage"),
    "rare successes first": replay(64, 4, "positives"),
    "evenly over problems": replay(64, 4, "stratified"),
    "without equal rewards": replay(64, 4, refuse_zero_variance=True),
    "at most 4 uses": replay(64, 4, max_uses=4),
    "controller, at most 4": joined(MIDDLE, ADAPTIVE),
    "controller, at most 8": joined(replay(64, 8), ADAPTIVE),
    "eps .1": joined(MIDDLE, {"knobs": {"eps_low": 0.1, "eps_high": 0.1}}),
    "eps .4": joined(MIDDLE, {"knobs": {"eps_low": 0.4, "eps_high": 0.4}}),
    "beta .01": joined(MIDDLE, {"knobs": {"beta": 0.01}}),
    "beta .1": joined(MIDDLE, {"knobs": {"beta": 0.1}}),
    "G 4": joined(MIDDLE, groups_of(4)),
    "G 16": joined(MIDDLE, groups_of(16)),
    "temperature .7": joined(MIDDLE, {"rollout": {"temperature": 0.7}}),
    "temperature 1.3": joined(MIDDLE, {"rollout": {"temperature": 1.3}}),
}

REUSE = (
    *("each group once", "replay 2", "replay 4", "replay 8"),
    *("controller, at most 4", "controller, at most 8"),
)
BUFFERS = ("buffer of 16", "replay 4", "buffer of 256", "at most 4 uses", "without equal rewards")
SAMPLERS = (
    *("replay 4", "fresh first", "unused first", "large advantages first"),
    *("rare successes first", "evenly over problems"),
)
KNOBS = (
    *("replay 4", "eps .1", "eps .4", "beta .01", "beta .1"),
    *("G 4", "G 16", "temperature .7", "temperature 1.3"),
)

CONTROLLED = ("controller, at most 8", "not below", "replay 8")
MIDDLE_POINT, ONCE = "replay 4", "each group once"
CLAIMS = (
    *(claim(f"{name} gains on {ONCE}", name, "above", ONCE) for name in ("replay 4", "replay 8")),
    claim("replay 2 gains on each group once", "replay 2", "above", ONCE),
    claim("eight draws gain on four", "replay 8", "above", MIDDLE_POINT),
    claim("the controller does as well as eight draws", *CONTROLLED),
    *(
        claim(f"{name}: as the middle", name, "level", MIDDLE_POINT)
        for name in (*BUFFERS, *SAMPLERS, *KNOBS)
        if name != MIDDLE_POINT
    ),
)
"""Replay against none, then each dial against the middle."""

SHARES = (0.25, 0.5, 1.0)
COSTS = tuple(axis for axis in AXES if axis.name in ("completions", "tokens", "flops", "seconds"))
DIALS = {
    "reuse": ("Replay ratio", REUSE),
    "buffers": ("What the buffer holds", BUFFERS),
    "samplers": ("Which groups are drawn", SAMPLERS),
    "knobs": ("eps, beta, G and temperature", KNOBS),
}


@dataclass(frozen=True)
class OperatingPointsStudy(TunedStudy):
    """Points of operation, one dial moved at a time."""

    name = "operating-points"
    question = "Which buffer, sampler, replay ratio and controller for which budget?"
    pages = ("results.md",)
    claims = CLAIMS
    watch = Watch((*SIGNALS, "replay/bytes", "replay/groups", "replay/ratio", "reuse/draws"))
    known: ClassVar = {"points": POINTS}
    few: ClassVar = {
        "points": ("each group once", "replay 4", "controller, at most 4"),
        "target": 0.05,
    }

    points: tuple[str, ...] = tuple(POINTS)
    """Which to run, by name."""
    target: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    """The Pass@1 whose cost is told."""

    @property
    def crossing(self) -> Crossing:
        """Every point."""
        return Crossing(self.points, POINTS)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns costs to the target, the best point for each budget, what each dial did."""
        final_rows = reported(rows)
        if not final_rows:
            return []
        columns = (
            FINAL,
            Column(f"against {MIDDLE_POINT}", against(of_labels(final_rows, (MIDDLE_POINT,)))),
            Column("updates a group", over_run("replay/ratio", ".2f")),
            Column("staleness, steps", over_run("staleness", ".2f")),
            Column("KL(π‖μ)", over_run("kl/pi_mu", ".4f")),
            Column("clipped", over_run("clipped")),
        )
        return [
            Section(
                f"What Pass@1 {self.target:g} costs",
                "Read from each run's curve between its evaluations, where it first reaches the"
                " target; the median, and how many seeds reach it: the others count as more than"
                " any. Updates and generation are the trainer's own FLOPs; seconds are of this"
                " machine, without compiling and evaluating, and move with its load. Bytes are the"
                " buffer's at the end.",
                [cost_table(rows, self.target)],
            ),
            Section(
                "The best point for a budget",
                f"Of each cost, shares of what “{ONCE}” spends in a whole run. The point is chosen"
                " by the mean of the tuning runs (validation problems); its score is that of the"
                " report seeds (test problems), beside the same for the point without reuse.",
                [budget_table(rows)],
            ),
            *(
                Section(
                    heading,
                    "",
                    [in_order(rows, points, columns, name=name)],
                    [Picture(f"curves-{name}", partial(all_axes, of_labels(final_rows, points)))],
                )
                for name, (heading, points) in DIALS.items()
            ),
        ]


def reached(row: Row, axis: Axis, target: float) -> float | None:
    """Returns the place on an axis where a run first has the target, interpolated, or None."""
    x, y = curve(row, axis, SCORE)
    beyond = np.flatnonzero(y >= target)
    if not len(beyond):
        return None
    if (n := beyond[0]) == 0:
        return float(x[0])
    part = (target - y[n - 1]) / (y[n] - y[n - 1])
    return float(x[n - 1] + part * (x[n] - x[n - 1]))


def cost_table(rows: Rows, target: float) -> Table:
    """Returns what each point spends until it has the target."""

    def costs(trials: Rows, axis: Axis = COSTS[0]) -> list[float | None]:
        return [reached(row, axis, target) for row in trials]

    def typical(axis: Axis, trials: Rows) -> str:
        middle = median([np.inf if cost is None else cost for cost in costs(trials, axis)])
        return amount(middle) if np.isfinite(middle) else "–"

    def megabytes(trials: Rows) -> str:
        sizes = [row["steps"].get("replay/bytes", []) for row in trials]
        ends = [values[-1] for values in sizes if values and values[-1] is not None]
        return f"{np.mean(ends) / 1e6:.2f}" if ends else "–"

    def order(trials: Rows) -> float:
        return float(np.mean([np.inf if cost is None else cost for cost in costs(trials)]))

    def seeds(trials: Rows) -> str:
        return f"{sum(cost is not None for cost in costs(trials))}"

    columns = (
        Column("seeds that reach it", seeds),
        *(Column(axis.name, partial(typical, axis)) for axis in COSTS),
        Column("buffer, MB", megabytes),
        FINAL,
        Column(f"against {ONCE}", against(of_labels(reported(rows), (ONCE,)))),
    )
    return summary(rows, columns, name="costs", order=order)


def amount(value: float) -> str:
    """Returns a count as one reads it."""
    return f"{value:,.0f}" if 10 <= value < 1e7 else f"{value:.3g}"


def budget_table(rows: Rows) -> Table:
    """Returns the point to take with so much to spend, chosen on tuning rows, and its score."""
    final_rows = reported(rows)
    settings = {(row["label"], str(row["setting"])) for row in final_rows}
    tried = where(rows, role="tuning")
    tuning = groups(row for row in tried if (row["label"], str(row["setting"])) in settings)
    final_trials = groups(final_rows)
    plain = next((trials for (name, _), trials in final_trials.items() if name == ONCE), [])
    lines = []
    for axis in COSTS:
        spent = [axis.of(row["evaluations"])[-1] for row in plain]
        for share in SHARES if spent else ():
            budget = share * float(np.median(spent))
            ranks = {
                place: float(np.mean([at(row, axis, budget) for row in trials]))
                for place, trials in tuning.items()
                if place in final_trials
            }
            if not ranks:
                continue
            best = max(ranks, key=lambda place: ranks[place])
            scores, others = (
                {row["seed"]: at(row, axis, budget) for row in trials}
                for trials in (final_trials[best], plain)
            )
            lead = Difference(tuple(scores[s] - others[s] for s in scores if s in others))
            means = (plus_minus([*each.values()]) for each in (scores, others))
            lines.append([f"{amount(budget)} {axis.name}", best[0], *means, lead])
    heads = ("budget", "best point", "its Pass@1", f"{ONCE}: Pass@1", "difference, seed by seed")
    return Table("budgets", heads, lines)


def at(row: Row, axis: Axis, budget: float) -> float:
    """Returns a run's Pass@1 when it has spent so much, interpolated; its last if it never did.

    A run's learning rate decays over all of its steps: one planned for the budget would do better.
    """
    x, y = curve(row, axis, SCORE)
    return float(np.interp(budget, x, y))
