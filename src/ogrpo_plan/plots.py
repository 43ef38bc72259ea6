"""Plots of a plan's simulations."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ogrpo.report.plots import BLUE, GREEN, GREY, ORANGE, STYLE, save_figure
from ogrpo_plan.sweep import Point

COLORS = (GREY, BLUE, ORANGE, GREEN)


def _axes(title: str, label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("workers (calls under way at a time)")
    axes.set_ylabel(label)
    return figure, axes


def _lines(points: Sequence[Point]) -> list[tuple[str, str, list[Point]]]:
    """Returns name, colour and points of each line."""
    names = dict.fromkeys(p.name for p in points)
    return [
        (name, COLORS[n % len(COLORS)], [p for p in points if p.name == name])
        for n, name in enumerate(names)
    ]


def throughput(points: Sequence[Point]) -> Figure:
    """Plots completions a second by the number of workers."""
    figure, axes = _axes("Throughput", "completions/s")
    for label, color, some in _lines(points):
        rates = [p.completions_per_second for p in some]
        axes.plot([p.workers for p in some], rates, ".-", label=label, color=color)
    axes.set_yscale("log")
    axes.legend()
    return figure


def idle(points: Sequence[Point]) -> Figure:
    """Plots the shares of time that trainer and workers wait."""
    figure, axes = _axes("Idle", "share of time")
    for label, color, some in _lines(points):
        workers = [p.workers for p in some]
        axes.plot(
            workers, [p.summary.trainer_idle for p in some], label=f"trainer, {label}", color=color
        )
        axes.plot(workers, [p.summary.workers_idle for p in some], "--", color=color)
    axes.plot([], [], "--", color="black", label="workers")
    axes.set_ylim(-0.02, 1.02)
    axes.legend(fontsize=8)
    return figure


def staleness(points: Sequence[Point]) -> Figure:
    """Plots the staleness of the samples at the step that trains on them."""
    figure, axes = _axes("Staleness of fresh samples", "steps")
    for label, color, some in _lines(points):
        workers = [p.workers for p in some]
        axes.plot(workers, [p.summary.staleness_mean for p in some], label=label, color=color)
        axes.plot(workers, [p.summary.staleness_p95 for p in some], ":", color=color)
        axes.plot(workers, [p.summary.staleness_max for p in some], "--", color=color)
    for style, name in (("-", "mean"), (":", "95th percentile"), ("--", "most")):
        axes.plot([], [], style, color="black", label=name)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


PLOTS = {"throughput": throughput, "idle": idle, "staleness": staleness}


def save_plots(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draws every plot as a PNG."""
    folder.mkdir(exist_ok=True)
    paths = []
    with mpl.rc_context(STYLE):
        for name, plot in PLOTS.items():
            paths.append(folder / f"{name}.png")
            save_figure(plot(points), paths[-1])
    return paths
