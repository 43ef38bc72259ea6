"""What the rows of `reuse` say: where each method ends, and what announced a collapse."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator

from experiments.grid.cell import Place
from experiments.grid.choose import final, groups, reported
from experiments.grid.figures import COLORS, all_axes, small_multiples
from experiments.grid.rows import Row
from experiments.grid.signals import SIGNS, ended_below_start, rank, stretch
from experiments.grid.study import Picture, Section
from experiments.grid.tables import (
    Table,
    against,
    average,
    score,
    summary,
)
from experiments.grid.verdicts import mean_and_interval
from experiments.reuse.methods import BASELINES

THRESHOLDS = {"kl/pi_mu": 0.01, "chi_square": 1.0}
SHOWN = (
    *("on-policy", "v10-i1", "v1-i4", "replay-4", "replay-4-exact", "rec-4", "positives-1"),
    *("positives-4", "adaptive-positives-8"),
)
"""Methods that curves are drawn of."""
PARTS = (0.1, 0.25, 0.5)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The page."""
    told = reported(rows)
    ends = "Final held-out Pass@1 on seeds and problems that nothing was chosen on."
    return [
        Section(
            "Where each method ends",
            f"{ends} Mean and 95 % interval over seeds; the last column is the difference, seed by"
            " seed, to the better method without reuse at the whole budget.",
            [result_table(rows)],
            [Picture("budget", partial(budget_plot, told))],
        ),
        Section(
            "Curves",
            "A choice of methods, each at its smallest budget, against six axes; seeds thin, a band"
            " of 95 %.",
            pictures=[
                Picture("curves", partial(all_axes, drawn(told))),
                Picture(
                    "dynamics",
                    partial(small_multiples, drawn(told), ["reward", *SIGNS, "clipped"]),
                ),
            ],
        ),
        Section(
            "What announces a collapse",
            "Chance that a signal, averaged over the first part of a run, ranks a run that ended"
            " below its start as worse than one that did not; .5 says nothing.",
            [warning_table(rows)],
            [Picture("signals", partial(signal_plot, rows))],
        ),
    ]


def result_table(rows: Sequence[Row]) -> Table:
    """Where each method ends, and how far from the better baseline."""
    told = groups(reported(rows))
    return summary(
        rows,
        (
            ("updates", average("updates")),
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("Pass@8, sampled", score("pass@8/sampled")),
            ("against no reuse, whole budget", against(best_baseline(told))),
        ),
        order=lambda trials: (
            -trials[0]["coordinates"]["completions"],
            -mean_and_interval([final(row) for row in trials])[0],
        ),
    )


def best_baseline(table: dict[Place, list[Row]]) -> list[Row]:
    """The runs of the better baseline with the whole budget."""
    found = [rows for (label, _), rows in table.items() if label in BASELINES]
    whole = max((bought(rows) for rows in found), default=0)
    most = [rows for rows in found if bought(rows) == whole]
    return max(most, key=lambda rows: mean_and_interval([final(r) for r in rows])[0], default=[])


def bought(rows: Sequence[Row]) -> int:
    """Completions that a method may collect."""
    return int(rows[0]["coordinates"]["completions"])


def drawn(rows: Sequence[Row]) -> list[Row]:
    """A choice of methods that lines can be told apart of; all where none of it was run."""
    few = smallest(rows)
    return [row for row in few if row["label"] in SHOWN] or few


def smallest(rows: Sequence[Row]) -> list[Row]:
    """Each method's rows at its smallest budget, by their label alone."""
    least: dict[str, int] = {}
    for row in rows:
        least[row["label"]] = min(bought([row]), least.get(row["label"], 1 << 62))
    chosen = [row for row in rows if bought([row]) == least[row["label"]]]
    return [{**row, "coordinates": {}} for row in chosen]


def early(row: Row, name: str, part: float) -> float:
    """Mean of a signal over the first `part` of a run; the worst there is where it was NaN."""
    return float(np.nan_to_num(stretch(row, name, 0.0, part), nan=SIGNS[name] * np.inf))


def warning(rows: Sequence[Row], name: str, part: float) -> float:
    """Chance that the signal ranks a run that ended below its start above one that did not."""
    values = [SIGNS[name] * early(row, name, part) for row in rows]
    return rank(values, [*map(ended_below_start, rows)])[0]


def warning_table(rows: Sequence[Row]) -> Table:
    """Which signal announces a collapse, and how early."""
    fell = sum(map(ended_below_start, rows))
    columns = ("signal", *(f"first {part:.0%}" for part in PARTS))
    lines = [[name, *(f"{warning(rows, name, part):.2f}" for part in PARTS)] for name in SIGNS]
    told = f"{fell} of {len(rows)} runs, those of tuning included, ended below their start."
    return Table("warning", columns, lines, told)


def budget_plot(rows: Sequence[Row]) -> Figure:
    """Where each method ends, every seed a point."""
    table = groups(rows)
    order = sorted(
        table,
        key=lambda p: (-bought(table[p]), -mean_and_interval([final(r) for r in table[p]])[0]),
    )
    figure = Figure(figsize=(8.0, 1.2 + 0.28 * len(order)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(order):
        scores = [final(row) for row in table[name]]
        axes.plot(scores, [place] * len(scores), "o", color=COLORS[0], alpha=0.5)
        axes.plot([np.mean(scores)], [place], "|", color="black", markersize=16)
    labels = [f"{name[0]}, {bought(table[name]):,}" for name in order]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel("final held-out Pass@1, sampled at T = 1 (bar: mean)")
    axes.set_title("Method and completions collected", loc="left", fontweight="bold")
    return figure


def signal_plot(rows: Sequence[Row]) -> Figure:
    """What each signal was early on, against where the run ended, every run a point."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    ends = [final(row) for row in rows]
    panels = figure.subplots(1, len(SIGNS), sharey=True)
    for axes, name in zip(panels, SIGNS, strict=True):
        axes.plot([early(row, name, 0.25) for row in rows], ends, ".", alpha=0.6)
        if name in THRESHOLDS:
            axes.set_xscale("symlog", linthresh=THRESHOLDS[name])
            axes.xaxis.set_major_locator(
                SymmetricalLogLocator(base=100, linthresh=THRESHOLDS[name])
            )
        axes.set_xlabel(f"{name}, first quarter")
    figure.axes[0].set_ylabel("final Pass@1")
    return figure
