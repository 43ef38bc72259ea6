"""What the rows of `reuse` say: learning rates, a table, plots."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator
from rich.table import Table

from experiments.reuse.methods import BASELINES
from ogrpo.report.plots import STYLE, save_figure
from ogrpo.report.run_dir import RunDir

Record = dict[str, Any]
Cell = tuple[str, int]


def cells(rows: Sequence[Record], *, tuning: bool) -> dict[Cell, list[Record]]:
    """Rows by method and steps, the largest budgets and the best first.

    Of the fresh seeds only those at the rate that tuning chose, should it have chosen anew.
    """
    rates = {} if tuning else best_rates(rows)
    found: dict[Cell, list[Record]] = defaultdict(list)
    for row in rows:
        cell = row["method"], row["steps"]
        if row["tuning"] == tuning and rates.get(cell, row["rate"]) == row["rate"]:
            found[cell].append(row)
    order = sorted(found, key=lambda cell: (-cell[1], -mean_score(found[cell])))
    return {cell: found[cell] for cell in order}


def mean_score(rows: Sequence[Record]) -> float:
    """Mean final Pass@1."""
    return float(np.mean([row["pass@1"] for row in rows]))


def best_rates(rows: Sequence[Record]) -> dict[Cell, float]:
    """The learning rate with the highest mean final Pass@1 over the tuning seeds."""
    chosen = {}
    for cell, trials in cells(rows, tuning=True).items():
        scores: dict[float, list[float]] = defaultdict(list)
        for row in trials:
            scores[row["rate"]].append(row["pass@1"])
        chosen[cell] = max(scores, key=lambda rate: float(np.mean(scores[rate])))
    return chosen


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    array = np.array(values)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array)))


def paired(rows: Sequence[Record], others: Sequence[Record]) -> tuple[float, float]:
    """Mean difference over the seeds that both have, and its standard error."""
    theirs = {row["seed"]: row["pass@1"] for row in others}
    return mean_and_error(
        [row["pass@1"] - theirs[row["seed"]] for row in rows if row["seed"] in theirs]
    )


def best_baseline(table: dict[Cell, list[Record]]) -> list[Record] | None:
    """The runs of the better baseline with the whole budget."""
    whole = max((steps for name, steps in table if name in BASELINES), default=0)
    found = [t for (name, n), t in table.items() if name in BASELINES and n == whole]
    return max(found, key=mean_score, default=None)


def lines(rows: Sequence[Record]) -> list[Record]:
    """One line a method and budget: what it cost, where it ended, against the whole budget."""
    table = cells(rows, tuning=False)
    baseline = best_baseline(table)
    found = []
    for (method, _), trials in table.items():
        mean, error = mean_and_error([row["pass@1"] for row in trials])
        greedy, _ = mean_and_error([row["greedy"] for row in trials])
        gap = paired(trials, baseline) if baseline else (float("nan"),) * 2
        found.append(
            {
                "method": method,
                "completions": trials[0]["completions"],
                "updates": float(np.mean([row["updates"] for row in trials])),
                "rate": trials[0]["rate"],
                "pass@1": mean,
                "error": error,
                "greedy": greedy,
                "gap": gap[0],
                "gap error": gap[1],
                "seeds": len(trials),
            }
        )
    return found


def summary_table(rows: Sequence[Record]) -> Table:
    """The figures of the fresh seeds."""
    table = Table(title="Final sampled Pass@1 on fresh seeds, mean and standard error")
    columns = ("method", "completions", "updates", "learning rate", "Pass@1", "greedy")
    for column in (*columns, "against the better baseline, whole budget"):
        table.add_column(column)
    for line in lines(rows):
        table.add_row(
            line["method"],
            f"{line['completions']:,}",
            f"{line['updates']:,.0f}",
            f"{line['rate']:g}",
            f"{line['pass@1']:.3f} ± {line['error']:.3f}",
            f"{line['greedy']:.3f}",
            f"{line['gap']:+.3f} ± {line['gap error']:.3f}",
        )
    return table


SIGNS = {"kl/pi_mu": 1, "ess": -1, "ratio/tail": 1, "chi_square": 1, "entropy": 1}
"""Signals, and whether trouble shows as more (1) or less (-1) of them."""
THRESHOLDS = {"kl/pi_mu": 0.01, "chi_square": 1.0}
PARTS = (0.1, 0.25, 0.5)


def early(row: Record, name: str, part: float) -> float:
    """Mean of a signal over the first `part` of a run; the worst there is where it was NaN."""
    known = [x for x in row[name] if x is not None]
    mean = np.mean(known[: max(1, round(len(known) * part))]) if known else np.nan
    return float(np.nan_to_num(mean, nan=SIGNS[name] * np.inf))


def collapsed(row: Record) -> bool:
    """Whether a run ended below where it began."""
    return row["pass@1"] < row["curve"][0][1]


def warning(rows: Sequence[Record], name: str, part: float) -> float:
    """Chance that the signal ranks a run that collapsed above one that did not, ties halved.

    The area under the ROC curve (Hanley and McNeil 1982): .5 says nothing, 1 sorts perfectly. NaN
    unless there are runs of both kinds.
    """
    values = [(SIGNS[name] * early(row, name, part), collapsed(row)) for row in rows]
    bad = np.array([value for value, fell in values if fell])
    good = np.array([value for value, fell in values if not fell])
    if not len(bad) or not len(good):
        return float("nan")
    above, equal = bad[:, None] > good, bad[:, None] == good
    return float(above.mean() + equal.mean() / 2)


def warning_table(rows: Sequence[Record]) -> Table:
    """Which signal announces a collapse, and how early."""
    fell = sum(map(collapsed, rows))
    table = Table(
        title=f"{fell} of {len(rows)} runs ended below their start: who ranks them worse?"
    )
    table.add_column("signal, mean over the first")
    for part in PARTS:
        table.add_column(f"{part:.0%}")
    for name in SIGNS:
        table.add_row(name, *(f"{warning(rows, name, part):.2f}" for part in PARTS))
    return table


def budget_plot(rows: Sequence[Record]) -> Figure:
    """Where each method ends, every seed a point."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    table = cells(rows, tuning=False)
    for place, trials in enumerate(table.values()):
        scores = [row["pass@1"] for row in trials]
        axes.plot(scores, [place] * len(scores), "o", color="#3366aa", alpha=0.5)
        axes.plot([np.mean(scores)], [place], "|", color="black", markersize=16)
    labels = [f"{method}, {trials[0]['completions']:,}" for (method, _), trials in table.items()]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("final held-out Pass@1, sampled at T = 1 (bar: mean)")
    axes.set_title("Method and completions bought", loc="left", fontweight="bold")
    return figure


def curve_plot(rows: Sequence[Record]) -> Figure:
    """Pass@1 by completions bought, mean over the fresh seeds; each method's largest budget."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    shown: set[str] = set()
    for (method, _), trials in cells(rows, tuning=False).items():
        if method in shown:
            continue
        shown.add(method)
        curves = np.array([row["curve"] for row in trials])
        axes.plot(*curves.mean(axis=0).T, label=method, marker=".", linewidth=1)
    axes.set_xlabel("completions bought")
    axes.set_ylabel("held-out Pass@1, sampled")
    axes.legend(fontsize=8, ncols=2)
    return figure


def signal_plot(rows: Sequence[Record]) -> Figure:
    """What each signal was early on, against where the run ended, every run a point."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    ends = [row["pass@1"] for row in rows]
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


def write_report(folder: RunDir, rows: Sequence[Record]) -> None:
    """Saves the plots."""
    folder.plots.mkdir(exist_ok=True)
    plots = {"budget": budget_plot, "curves": curve_plot, "signals": signal_plot}
    with mpl.rc_context(STYLE):
        for name, plot in plots.items():
            save_figure(plot(rows), folder.plots / f"{name}.png")
