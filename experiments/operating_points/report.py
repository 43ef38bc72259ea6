"""What the rows of `operating-points` say: costs to a target, and the best point for a budget."""

from collections.abc import Sequence
from functools import partial
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.choose import SCORE, groups, of_labels, reported
from experiments.grid.figures import AXES, COLORS, Axis, all_axes, curve
from experiments.grid.rows import Row
from experiments.grid.study import Picture, Section
from experiments.grid.tables import (
    Column,
    Table,
    against,
    in_order,
    over_run,
    plus_minus,
    score,
    summary,
)
from experiments.grid.verdicts import Difference, mean_and_interval
from experiments.operating_points.points import BUFFERS, KNOBS, REUSE, SAMPLERS

BASE, MIDDLE = "each group once", "replay 4"
SHARES = (0.25, 0.5, 1.0)
COSTS = tuple(axis for axis in AXES if axis.name in ("completions", "tokens", "flops", "seconds"))
DIALS = {"reuse": REUSE, "buffers": BUFFERS, "samplers": SAMPLERS, "knobs": KNOBS}


def sections(rows: Sequence[Row], target: float) -> list[Section]:
    """The page."""
    told = reported(rows)
    if not told:
        return []
    return [
        Section(
            f"What Pass@1 {target:g} costs",
            "Read from each run's curve between its evaluations, where it first reaches the target;"
            " the median of the seeds that reach it, and how many do. Updates and generation are"
            " the trainer's own FLOPs; seconds are of this machine, without compiling and"
            " evaluating, and move with its load. Bytes are the buffer's at the end.",
            [cost_table(rows, target)],
            [Picture("costs", partial(cost_plot, told))],
        ),
        Section(
            "The best point for a budget",
            f"Of each cost, shares of what “{BASE}” spends in a whole run. The point is chosen by"
            " the mean of the tuning runs (validation problems); its score is that of the report"
            " seeds (test problems), beside the same for the point without reuse.",
            [budget_table(rows)],
        ),
        *(of_dial(rows, name, points) for name, points in DIALS.items()),
    ]


def of_dial(rows: Sequence[Row], name: str, points: Sequence[str]) -> Section:
    """What moving one dial did."""
    heads = {
        "reuse": "Replay ratio",
        "buffers": "What the buffer holds",
        "samplers": "Which groups are drawn",
        "knobs": "eps, beta, G and temperature",
    }
    mine = of_labels(reported(rows), points)
    columns: list[Column] = [
        ("final Pass@1", score()),
        (f"against {MIDDLE}", against(of_labels(reported(rows), (MIDDLE,)))),
        ("updates a group", over_run("replay/ratio", ".2f")),
        ("staleness, steps", over_run("staleness", ".2f")),
        ("KL(π‖μ)", over_run("kl/pi_mu", ".4f")),
        ("clipped", over_run("clipped")),
    ]
    return Section(
        heads[name],
        "",
        [in_order(rows, points, columns, name=name)],
        [Picture(f"curves-{name}", partial(all_axes, mine))],
    )


def reached(row: Row, axis: Axis, target: float) -> float | None:
    """Where on an axis a run first has the target, between its evaluations; None if nowhere."""
    x, y = curve(row, axis, SCORE)
    if not len(y):
        return None
    if y[0] >= target:
        return float(x[0])
    for n in range(1, len(y)):
        if y[n] >= target:
            part = (target - y[n - 1]) / (y[n] - y[n - 1])
            return float(x[n - 1] + part * (x[n] - x[n - 1]))
    return None


def cost_table(rows: Sequence[Row], target: float) -> Table:
    """What each point spends until it has the target."""

    def column(axis: Axis) -> Column:
        def told(trials: Sequence[Row]) -> str:
            costs = [reached(row, axis, target) for row in trials]
            known = [cost for cost in costs if cost is not None]
            return amount(median(known)) if known else "–"

        return axis.name, told

    def count(trials: Sequence[Row]) -> str:
        return f"{sum(reached(row, COSTS[0], target) is not None for row in trials)}"

    columns: list[Column] = [
        ("seeds that reach it", count),
        *(column(axis) for axis in COSTS),
        ("buffer, MB", buffer_megabytes),
        ("final Pass@1", score()),
        (f"against {BASE}", against(of_labels(reported(rows), (BASE,)))),
    ]

    def order(trials: Sequence[Row]) -> float:
        costs = [reached(row, COSTS[0], target) for row in trials]
        return float(np.mean([np.inf if cost is None else cost for cost in costs]))

    return summary(rows, columns, name="costs", order=order)


def amount(value: float) -> str:
    """A count as one reads it."""
    return f"{value:,.0f}" if 10 <= value < 1e7 else f"{value:.3g}"


def buffer_megabytes(trials: Sequence[Row]) -> str:
    """What the buffer held at the end."""
    held = [row["steps"].get("replay/bytes", []) for row in trials]
    ends = [values[-1] for values in held if values and values[-1] is not None]
    return f"{np.mean(ends) / 1e6:.2f}" if ends else "–"


def budget_table(rows: Sequence[Row]) -> Table:
    """Which point to take with so much to spend, and what it then has."""
    tuned = groups(chosen_tuning(rows))
    told = groups(reported(rows))
    plain = next((trials for (name, _), trials in told.items() if name == BASE), [])
    lines = []
    for axis in COSTS:
        spent = [axis.of(row["evaluations"])[-1] for row in plain]
        for share in SHARES if spent else ():
            budget = share * float(np.median(spent))
            ranks = {
                place: float(np.mean([at(row, axis, budget) for row in trials]))
                for place, trials in tuned.items()
                if place in told
            }
            if not ranks:
                continue
            best = max(ranks, key=lambda place: ranks[place])
            scores, others = (
                {row["seed"]: at(row, axis, budget) for row in trials}
                for trials in (told[best], plain)
            )
            leads = [scores[seed] - others[seed] for seed in scores if seed in others]
            lines.append(
                [
                    f"{amount(budget)} {axis.name}",
                    best[0],
                    plus_minus([*scores.values()]),
                    plus_minus([*others.values()]),
                    Difference(tuple(leads)),
                ]
            )
    heads = ("budget", "best point", "its Pass@1", f"{BASE}: Pass@1", "difference, seed by seed")
    return Table("budgets", heads, lines)


def chosen_tuning(rows: Sequence[Row]) -> list[Row]:
    """The tuning rows at the settings that were then reported."""
    settings = {(row["label"], str(row["setting"])) for row in reported(rows)}
    tuning = [row for row in rows if row["role"] == "tuning"]
    return [row for row in tuning if (row["label"], str(row["setting"])) in settings]


def at(row: Row, axis: Axis, budget: float) -> float:
    """A run's Pass@1 when it has spent so much, between its evaluations; its last if it never did.

    A run's learning rate decays over all of its steps: one planned for the budget would do better.
    """
    x, y = curve(row, axis, SCORE)
    return float(np.interp(budget, x, y))


def cost_plot(rows: Sequence[Row]) -> Figure:
    """Where each point ends, against what it spent; all collect as many completions."""
    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, axis in zip(panels, COSTS[-2:], strict=True):
        for n, ((label, _), trials) in enumerate(groups(rows).items()):
            spent = float(np.mean([axis.of(row["evaluations"])[-1] for row in trials]))
            mean, error = mean_and_interval([at(row, axis, np.inf) for row in trials])
            marker = "osD^v"[n // len(COLORS)]
            axes.errorbar(
                spent,
                mean,
                np.nan_to_num(error),
                fmt=marker,
                color=COLORS[n % len(COLORS)],
                label=label,
                capsize=2,
            )
        axes.set_xlabel(axis.label)
        axes.set_xlim(left=0)
    panels[0].set_ylabel("final Pass@1, sampled")
    handles, names = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside right upper", fontsize=8)
    return figure
