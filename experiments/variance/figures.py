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
