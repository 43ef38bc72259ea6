"""Curves against every axis, seeds as thin lines and a band around their mean."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AsinhLocator
from numpy.typing import NDArray

from experiments.grid.cell import place_name
from experiments.grid.rows import SCORE, Row, Rows, groups, without_coordinates
from ogrpo.evaluation.estimates import student_quantile

Array = NDArray[np.float64]
Columns = Mapping[str, Any]
COLORS = (
    *("#3366aa", "#dd7722", "#338855", "#aa3377", "#7755aa", "#997733"),
    *("#22a5b5", "#888888", "#c2453d", "#5b8c2a"),
)
DASHES = ("-", "--", ":")
SAMPLES = 64
PANELS = 3
"""In a line of small multiples."""
SPIKE = 20
"""Times that the largest value may be most of the others."""
LABELS = {
    SCORE: "Pass@1, sampled",
    "pass@1/greedy": "Pass@1, greedy",
    "entropy": "entropy, nats a token",
    "kl/pi_mu": "KL(π‖μ), nats a token",
    "kl/pi_ref": "KL(π‖reference), nats a token",
    "ess": "effective sample size",
    "ess/sequence": "effective sample size, sequences",
    "tokens/completion": "tokens a completion",
    "grad_norm": "norm of the gradient",
    "grad_norm/head": "norm of the output head's gradient",
    "grad_variance": "variance of the gradient",
    "ratio/tail": "99 % quantile of token ratios",
    "chi_square": "chi-square of sequences",
    "clipped": "clipped, share of tokens",
    "reward": "training reward",
}


class Axis(NamedTuple):
    """A counter of a run that curves are drawn against."""

    name: str
    label: str
    parts: tuple[str, ...] = ()
    """Counters whose sum it is, where it is not one itself."""

    def of(self, columns: Columns) -> Array:
        """Returns its values."""
        return np.sum([np.asarray(columns[n], np.float64) for n in self.parts or (self.name,)], 0)


UPDATES = Axis("updates", "updates")
AXES = (
    Axis("step", "iterations"),
    UPDATES,
    Axis("completions", "completions collected"),
    Axis("tokens", "tokens generated"),
    Axis("flops", "FLOPs", ("flops/rollout", "flops/update")),
    Axis("seconds", "seconds, without compiling and evaluating"),
)


def columns_of(row: Row, name: str) -> Columns:
    """Returns the row's part that has this score or signal."""
    return row["evaluations"] if name in row["evaluations"] else row["steps"]


def curve(row: Row, axis: Axis, name: str) -> tuple[Array, Array]:
    """Returns a score or signal of a row against an axis, where it was measured."""
    columns = columns_of(row, name)
    if name not in columns:
        return np.empty(0), np.empty(0)
    y = np.array([np.nan if value is None else value for value in columns[name]], np.float64)
    known = np.isfinite(y)
    return axis.of(columns)[known], y[known]


def mean_curve(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Returns places that all curves reach, their mean there, and half its 95 % interval."""
    begin = max(x[0] for x, _ in curves)
    end = min(x[-1] for x, _ in curves)
    shared = curves[0][0]
    same = all(np.array_equal(shared, x) for x, _ in curves)
    places = shared if same else np.linspace(begin, max(begin, end), SAMPLES)
    values = np.array([np.interp(places, x, y) for x, y in curves])
    n = len(values)
    half = (
        values.std(axis=0, ddof=1) * student_quantile(n - 1) / np.sqrt(n) if n > 1 else 0 * places
    )
    return places, values.mean(axis=0), half


def draw(axes: Axes, rows: Rows, axis: Axis, name: str) -> None:
    """Draws each seed as a thin line, their mean as a thick one, its 95 % t-interval as a band.

    The number of a method among those drawn decides its colour, and beyond those its dashes.
    """
    for n, (place, trials) in enumerate(groups(rows).items()):
        color, dashes = COLORS[n % len(COLORS)], DASHES[n // len(COLORS) % len(DASHES)]
        curves = [xy for row in trials if len((xy := curve(row, axis, name))[0])]
        if not curves:
            continue
        for x, y in curves:
            axes.plot(x, y, color=color, linewidth=0.5, alpha=0.35)
        places, mean, half = mean_curve(curves)
        axes.plot(places, mean, dashes, color=color, linewidth=1.6, label=place_name(place))
        axes.fill_between(places, mean - half, mean + half, color=color, alpha=0.18, linewidth=0)


def legend_below(figure: Figure, columns: int = 4) -> None:
    """Puts the legend of the first panel below the figure, if it has one."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(columns, len(names)), fontsize=9
        )


def all_axes(rows: Rows) -> Figure:
    """Draws sampled Pass@1 of every method in six panels, one for each axis."""
    figure = Figure(figsize=(11.5, 7.0), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True)
    for axis, axes in zip(AXES, panels.flat, strict=True):
        draw(axes, rows, axis, SCORE)
        axes.set_xlabel(axis.label)
    for axes in panels[:, 0]:
        axes.set_ylabel(LABELS[SCORE])
    legend_below(figure)
    figure.suptitle(LABELS[SCORE], x=0.01, ha="left", fontweight="bold")
    return figure


def small_multiples(rows: Rows, names: Sequence[str]) -> Figure:
    """Draws several scores and signals against updates, a panel each.

    Its scale is logarithmic beyond most values where a few would hide the rest.
    """
    height = -(-len(names) // PANELS)
    figure = Figure(figsize=(3.9 * PANELS, 2.7 * height + 0.8), layout="constrained")
    panels = [*figure.subplots(height, PANELS, squeeze=False).flat]
    for axes, name in zip(panels, names, strict=False):
        draw(axes, rows, UPDATES, name)
        heights = np.abs([y for line in axes.lines for y in np.asarray(line.get_ydata(), float)])
        if len(heights) and heights.max() > SPIKE * (most := np.quantile(heights, 0.9)) > 0:
            axes.set_yscale("asinh", linear_width=most)
            axes.yaxis.set_major_locator(AsinhLocator(most, numticks=5))
        axes.set_title(LABELS.get(name, name), fontsize=10, loc="left")
        axes.set_xlabel(UPDATES.label, fontsize=9)
    for axes in panels:
        axes.set_visible(axes.has_data())
    legend_below(figure)
    return figure


class Picture(NamedTuple):
    """A figure of a page, and of docs/ where the study's page there shows it."""

    name: str
    """Name of its file."""
    draw: Callable[[], Figure]


def curves(rows: Rows, signals: Sequence[str], slug: str) -> list[Picture]:
    """Returns signals against updates, of rows of one place."""
    here = without_coordinates(rows)
    return [Picture(f"{slug}-signals", partial(small_multiples, here, signals))]
