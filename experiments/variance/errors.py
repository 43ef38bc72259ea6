"""Errors of gradients by age, in units of a fresh batch's variance: from rows, and drawn."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.grid.cell import place_name
from experiments.grid.figures import COLORS, legend_below
from experiments.grid.rows import Row, Rows, groups
from experiments.variance.along import BATCH, ESTIMATORS

Vector = NDArray[np.float64]


def ages_of(rows: Rows) -> list[int]:
    """Returns the ages that all rows have."""
    return sorted(set.intersection(*({one["age"] for one in row["ages"]} for row in rows)))


def at_age(row: Row, age: int) -> Row:
    """Returns the part of a row that is of an age."""
    return next(one for one in row["ages"] if one["age"] == age)


def column(rows: Rows, age: int, name: str) -> Vector:
    """Returns a figure at an age, seed by seed: of the divergences, or of the estimates of J."""
    ages = [at_age(row, age) for row in rows]
    return np.array([{**one, **one["value"]}[name] for one in ages], np.float64)  # None is NaN


def relative_variance(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the variance of a group's gradient over a fresh one's, seed by seed."""
    return _moment(rows, estimator, age, "variance") / _moment(rows, "none", 0, "variance")


def relative_error(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the mean squared error of a batch over a fresh batch's variance, seed by seed.

    The squared bias is unbiased and may be below 0 in a seed; its mean over seeds is what counts.
    """
    bias2 = _moment(rows, estimator, age, "bias2") / _moment(rows, "none", 0, "variance")
    return relative_variance(rows, estimator, age) + BATCH * bias2


def _moment(rows: Rows, estimator: str, age: int, name: str) -> Vector:
    return np.array([at_age(row, age)["gradient"][estimator][name] for row in rows], np.float64)


def gradient_plot(rows: Rows) -> Figure:
    """Draws variance and error of gradients against age, a line of panels for each run."""
    runs, shown = groups(rows), {"variance": relative_variance, "squared error": relative_error}
    figure = Figure(figsize=(10.5, 3.4 * len(runs) + 0.8), layout="constrained")
    grid = figure.subplots(len(runs), 2, sharex=True, sharey="col", squeeze=False)
    for line, (place, trials) in zip(grid, runs.items(), strict=True):
        ages = ages_of(trials)
        for axes, (what, of) in zip(line, shown.items(), strict=True):
            for name, color in zip(ESTIMATORS, COLORS, strict=False):
                values = np.array([of(trials, name, age) for age in ages])
                mean = values.mean(axis=1)
                axes.plot(ages, mean, "o-", color=color, label=name, markersize=3.5)
                if values.shape[1] > 1:
                    error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
                    axes.fill_between(ages, mean - error, mean + error, color=color, alpha=0.12)
            axes.set_xscale("symlog", linthresh=1)
            axes.set_xticks(ages, [f"{age}" for age in ages])
            axes.set_yscale("log")
            axes.set_ylabel(f"{what}, over a fresh batch's")
            axes.set_title(place_name(place), loc="left", fontsize=10)
            axes.set_xlabel("age of the sampler, steps")
        chi = [1 + column(trials, age, "chi_square").mean() for age in ages]
        line[0].plot(ages, chi, "k--", linewidth=1, label="1 + χ²")
    legend_below(figure, 3)
    return figure
