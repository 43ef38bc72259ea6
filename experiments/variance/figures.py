"""Figures of `variance`."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.grid.cell import place_name
from experiments.grid.figures import COLORS, legend_below
from experiments.grid.rows import Rows, groups
from experiments.variance.errors import (
    Vector,
    ages_of,
    column,
    relative_error,
    relative_variance,
)
from experiments.variance.gradients import ESTIMATORS

SHOWN = {
    "mse/none": "no weights",
    "mse/plain": "plain",
    "mse/2": "cap 2",
    "mse/root": "τ = J + (n − 1) b(τ)",
    "mse/proposed": "1 ± √(Var r/Var ρ), refuted",
    "mse/self-normalised": "self-normalised",
}


def families(rows: Rows) -> Figure:
    """Draws errors of the first family against chi-square: predicted lines, measured points."""
    pairs = rows[0]["pairs"]
    sizes = list(pairs[0]["estimators"])
    figure = Figure(figsize=(4.0 * len(sizes), 4.4), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    chi = [pair["chi_square"] for pair in pairs]
    for axes, n in zip(panels, sizes, strict=True):
        for name, color in zip(pairs[0]["estimators"][n], COLORS, strict=False):
            each = [pair["estimators"][n][name] for pair in pairs]
            axes.plot(chi, [one["mse"] for one in each], color=color, linewidth=1.3)
            axes.plot(chi, [one["mse/measured"] for one in each], "o", color=color, markersize=3.5)
            axes.plot([], [], "o-", color=color, label=name)
        axes.set(xscale="log", yscale="log", xlabel="χ²(π‖μ)")
        axes.set_title(f"n = {n}", loc="left")
    panels[0].set_ylabel("mean squared error (line: predicted)")
    legend_below(figure, 4)
    return figure


def divergence(rows: Rows) -> Figure:
    """Draws effective share against KL, with what is proved of it."""
    figure = Figure(figsize=(6.2, 3.9), layout="constrained")
    axes = figure.subplots()
    for (place, trials), color in zip(groups(rows).items(), COLORS, strict=False):
        for n, age in enumerate(ages_of(trials)):
            kl, ess = (column(trials, age, name) for name in ("kl", "ess"))
            label = place_name(place) if n == 0 else None
            axes.plot(kl, ess, "o", color=color, markersize=4, alpha=0.7, label=label)
    kl = np.linspace(0, max(axes.get_xlim()[1], 0.01), 100)
    axes.plot(kl, np.exp(-kl), color="black", linewidth=1, label="exp(−KL), the most in the limit")
    axes.set(xlabel="KL(π‖μ), nats a completion", ylabel="effective share of completions")
    axes.set_ylim(0, 1.05)
    axes.legend(fontsize=9)
    return figure


def gradient(rows: Rows) -> Figure:
    """Draws variance and error of gradients against age."""
    runs = groups(rows)
    panels: tuple[tuple[str, Callable[[Rows, str, int], Vector]], ...] = (
        ("variance, over a fresh batch's", relative_variance),
        ("squared error, over a fresh batch's", relative_error),
    )
    height = 3.4 * len(runs) + 0.8
    figure = Figure(figsize=(10.5, height), layout="constrained")
    grid = figure.subplots(len(runs), 2, sharex=True, sharey="col", squeeze=False)
    for line, (place, trials) in zip(grid, runs.items(), strict=True):
        for axes, (label, of) in zip(line, panels, strict=True):
            _by_age(axes, trials, of)
            axes.set_ylabel(label)
            axes.set_title(place_name(place), loc="left", fontsize=10)
            axes.set_xlabel("age of the sampler, steps")
        chi = [1 + column(trials, age, "chi_square").mean() for age in ages_of(trials)]
        line[0].plot(ages_of(trials), chi, "k--", linewidth=1, label="1 + χ²")
    legend_below(figure, 3)
    return figure


def _by_age(axes: Axes, rows: Rows, of: Callable[[Rows, str, int], Vector]) -> None:
    ages = ages_of(rows)
    for name, color in zip(ESTIMATORS, COLORS, strict=False):
        values = np.array([of(rows, name, age) for age in ages])
        mean = values.mean(axis=1)
        axes.plot(ages, mean, "o-", color=color, label=name, markersize=3.5)
        if values.shape[1] > 1:
            error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
            axes.fill_between(ages, mean - error, mean + error, color=color, alpha=0.12)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(ages, [f"{age}" for age in ages])
    axes.set_yscale("log")


def thresholds(rows: Rows) -> Figure:
    """Draws error of each rule for a cap over the least error that any cap has."""
    runs = groups(rows)
    figure = Figure(figsize=(5.2 * len(runs), 4.2), layout="constrained")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, (place, trials) in zip(panels, runs.items(), strict=True):
        ages = ages_of(trials)
        for (rule, label), color in zip(SHOWN.items(), COLORS, strict=False):
            over = [column(trials, age, rule) / column(trials, age, "mse/best") for age in ages]
            axes.plot(
                ages, [x.mean() for x in over], "o-", color=color, label=label, markersize=3.5
            )
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks(ages, [f"{age}" for age in ages])
        axes.set_yscale("log")
        axes.set_xlabel("age of the sampler, steps")
        axes.set_title(place_name(place), loc="left", fontsize=10)
    panels[0].set_ylabel("squared error over the best cap's")
    legend_below(figure, 3)
    return figure
