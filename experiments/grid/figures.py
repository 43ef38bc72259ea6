"""Curves against every axis, seeds as thin lines and a band around their mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AsinhLocator
from numpy.typing import NDArray

from experiments.grid.cell import Place, place_name
from experiments.grid.choose import SCORE, groups
from experiments.grid.rows import Row
from ogrpo.evaluation.intervals import student_quantile

Array = NDArray[np.float64]
COLORS = (
    *("#3366aa", "#dd7722", "#338855", "#aa3377", "#7755aa", "#997733"),
    *("#22a5b5", "#888888", "#c2453d", "#5b8c2a"),
)
DASHES = ("-", "--", ":")
SAMPLES = 64
SPIKE = 20
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
    """What a curve is drawn against."""

    name: str
    label: str
    of: Callable[[Mapping[str, Any]], Array]


def _column(name: str) -> Callable[[Mapping[str, Any]], Array]:
    return lambda columns: np.asarray(columns[name], np.float64)


AXES = (
    Axis("step", "iterations", _column("step")),
    Axis("updates", "updates", _column("updates")),
    Axis("completions", "completions collected", _column("completions")),
    Axis("tokens", "tokens generated", _column("tokens")),
    Axis("flops", "FLOPs", lambda c: _column("flops/rollout")(c) + _column("flops/update")(c)),
    Axis("seconds", "seconds, without compiling and evaluating", _column("seconds")),
)


def columns_of(row: Row, name: str) -> Mapping[str, Any]:
    """The row's part that has this score or signal."""
    return row["evaluations"] if name in row["evaluations"] else row["steps"]


def curve(row: Row, axis: Axis, name: str) -> tuple[Array, Array]:
    """A score or signal of a row against an axis, where it was measured."""
    columns = columns_of(row, name)
    if name not in columns:
        return np.empty(0), np.empty(0)
    y = np.array([np.nan if value is None else value for value in columns[name]], np.float64)
    known = np.isfinite(y)
    return axis.of(columns)[known], y[known]


def mean_curve(curves: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """Places that all curves reach, the curves' mean there, half the width of its 95 % interval."""
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


def draw(axes: Axes, rows: Sequence[Row], axis: Axis, name: str, label: str, number: int) -> None:
    """Each seed a thin line, their mean a thick one, a band of its 95 % t-interval.

    The number of the method among those drawn decides its colour, and beyond those its dashes.
    """
    color, dashes = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
    curves = [found for row in rows if len((found := curve(row, axis, name))[0])]
    if not curves:
        return
    for x, y in curves:
        axes.plot(x, y, color=color, linewidth=0.5, alpha=0.35)
    places, mean, half = mean_curve(curves)
    axes.plot(places, mean, dashes, color=color, linewidth=1.6, label=label)
    axes.fill_between(places, mean - half, mean + half, color=color, alpha=0.18, linewidth=0)


def show_spikes(axes: Axes) -> None:
    """A scale that is logarithmic beyond most values, where a few would hide the rest."""
    values = np.abs([y for line in axes.lines for y in np.asarray(line.get_ydata(), np.float64)])
    if len(values) and values.max() > SPIKE * (most := np.quantile(values, 0.9)) > 0:
        axes.set_yscale("asinh", linear_width=most)
        axes.yaxis.set_major_locator(AsinhLocator(most, numticks=5))


def all_axes(
    rows: Sequence[Row],
    name: str = SCORE,
    *,
    labels: Mapping[Place, str] | None = None,
    title: str | None = None,
    log: bool = False,
) -> Figure:
    """A score or signal of every method, in six panels: one for each axis."""
    found = groups(rows)
    figure = Figure(figsize=(11.5, 7.0), layout="constrained")
    panels = figure.subplots(2, 3, sharey=True)
    for axis, axes in zip(AXES, panels.flat, strict=True):
        for n, (place, trials) in enumerate(found.items()):
            told = (labels or {}).get(place, place_name(place))
            draw(axes, trials, axis, name, told, n)
        axes.set_xlabel(axis.label)
        if log:
            axes.set_yscale("log")
    for axes in panels[:, 0]:
        axes.set_ylabel(LABELS.get(name, name))
    handles, names = panels.flat[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=min(4, len(names)), fontsize=9
        )
    figure.suptitle(title or LABELS.get(name, name), x=0.01, ha="left", fontweight="bold")
    return figure


def small_multiples(
    rows: Sequence[Row], names: Sequence[str], *, axis: str = "step", columns: int = 3
) -> Figure:
    """Several scores and signals against one axis, a panel each."""
    chosen = next(a for a in AXES if a.name == axis)
    found = groups(rows)
    height = -(-len(names) // columns)
    figure = Figure(figsize=(3.9 * columns, 2.7 * height + 0.8), layout="constrained")
    panels = [*figure.subplots(height, columns, squeeze=False).flat]
    for axes, name in zip(panels, names, strict=False):
        for n, (place, trials) in enumerate(found.items()):
            draw(axes, trials, chosen, name, place_name(place), n)
        show_spikes(axes)
        axes.set_title(LABELS.get(name, name), fontsize=10, loc="left")
        axes.set_xlabel(chosen.label, fontsize=9)
    for axes in panels:
        if not axes.has_data():
            axes.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9
        )
    return figure
