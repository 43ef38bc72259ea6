"""Plots of the `bounds` study, each a function from records to a figure."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.grid.figures import legend_below
from ogrpo.report.page import BLUE, GREEN, GREY, ORANGE

Record = dict[str, Any]
Records = Sequence[Record]
RED, INK = "#b3402d", "#1d2530"
SIZE = (6.4, 4.0)
TOLERANCE = 1e-6
"""Error of float64 sums and of a float32 policy table."""


def of_part(records: Records, part: str) -> list[Record]:
    """Returns the records of one part, in order."""
    return [record for record in records if record["part"] == part]


def vacuity(steps: Records) -> list[float]:
    """Returns minus the published right side, at each step and prompt with sigma <= 1/2."""
    prompts = [r["by_prompt"] for r in steps]
    pairs = [p for by in prompts for p in zip(by["sigma"], by["published"], strict=True)]
    return [-published for sigma, published in pairs if sigma <= 0.5]


def column(records: Records, key: str) -> np.ndarray:
    """Returns one quantity over the records."""
    return np.array([record[key] for record in records], float)


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def bandit_gain(records: Records) -> Figure:
    """Draws ΔJ of each update and the guarantees that come close to it."""
    steps = of_part(records, "bandit")
    figure, axes = _axes("Bandit: one update's gain, exactly", "step", "mean over prompts")
    x = column(steps, "step")
    axes.plot(x, column(steps, "value/gain"), color=INK, label="ΔJ")
    axes.plot(x, column(steps, "mm"), color=BLUE, label="minorise-maximise, exact centre")
    axes.plot(x, column(steps, "mm/unit_center"), color=ORANGE, label="the same, centre 1")
    axes.plot(x, column(steps, "certificate"), color=GREEN, label="certificate from fresh draws")
    axes.axhline(0, color=INK, linewidth=0.8)
    legend_below(figure, 2)
    return figure


def published(records: Records) -> Figure:
    """Draws the published right side against sigma: nothing above zero left of one half."""
    steps = of_part(records, "bandit")
    sigma = np.concatenate([r["by_prompt"]["sigma"] for r in steps])
    value = np.concatenate([r["by_prompt"]["published"] for r in steps])
    figure, axes = _axes("The published bound against σ", "σ of the prompt", "its right side")
    axes.scatter(sigma, value, s=9, color=RED, alpha=0.5, linewidths=0)
    axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.axhline(0, color=INK, linewidth=0.8)
    return figure


def run_periods(records: Records) -> Figure:
    """Draws whole server periods, against J measured anew."""
    periods = of_part(records, "period")
    figure, axes = _axes("Default run: whole server periods", "step at the end", "ΔJ of a period")
    step = column(periods, "step")
    width = float(np.min(np.diff(step, prepend=0))) / 12
    shown = (("value/gain", INK, "measured anew"), ("gain", GREY, "importance sampling"))
    for n, (key, color, label) in enumerate((*shown, ("mm", BLUE, "minorise-maximise"))):
        mean = column(periods, key)
        ends = np.abs(np.stack([column(periods, f"{key}/{end}") for end in ("low", "high")]) - mean)
        x = step + (n - 1) * width
        axes.errorbar(x, mean, ends, color=color, label=label, fmt="o", markersize=4, capsize=2)
    x = step + 2 * width
    axes.plot(x, column(periods, "certificate"), "v", color=GREEN, label="certificate")
    axes.axhline(0, color=INK, linewidth=0.8)
    legend_below(figure, 2)
    return figure


Plot = Callable[[Records], Figure]
PLOTS: dict[str, tuple[str, Plot]] = {
    "bandit_gain": ("bandit", bandit_gain),
    "published": ("bandit", published),
    "run_periods": ("period", run_periods),
}
"""Each with the part whose records it shows."""
