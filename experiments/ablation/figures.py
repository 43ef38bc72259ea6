"""Figures of `ablation` that no other study has."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.ablation.methods import METHODS
from experiments.grid.choose import SCORE, final, groups
from experiments.grid.figures import COLORS
from experiments.grid.rows import Row
from experiments.grid.verdicts import mean_and_interval

WIDTHS = (1e-6, 1e-2, 1e-1, 1.0)


def reward_scale_curve() -> Figure:
    """(1 - sigma)/sigma against the success rate, for several eps."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    p = np.linspace(1e-3, 1 - 1e-3, 999)
    for eps, color in zip(WIDTHS, COLORS, strict=False):
        sigma = np.sqrt(p * (1 - p) + eps)
        axes.plot(p, (1 - sigma) / sigma, color=color, label=f"ε = {eps:g}")
    axes.axhline(0, color="black", linewidth=0.6)
    axes.axhline(1, color="#888888", linewidth=0.8, linestyle="--")
    axes.annotate("σ = 1/2, the most that 0/1 rewards have", (0.5, 1.5), ha="center")
    axes.set_ylim(-0.6, 8)  # it ends at 1/sqrt(eps) - 1
    axes.set_xlabel("success rate p of a prompt")
    axes.set_ylabel("(1 − σ)/σ")
    axes.legend(loc="upper center", ncols=len(WIDTHS), fontsize=9)
    return figure


def against_pushes(rows: Sequence[Row]) -> Figure:
    """Where a run ends by how often its server was renewed, every seed a point."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    means: list[tuple[float, float, float]] = []
    for trials in groups(rows).values():
        v = METHODS[trials[0]["label"]].v
        scores = [final(row) for row in trials]
        axes.plot([v] * len(scores), scores, "o", color=COLORS[0], alpha=0.35, markersize=4)
        means.append((v, *mean_and_interval(scores)))
    if means:
        x, y, error = map(np.array, zip(*sorted(means), strict=True))
        axes.errorbar(x, y, np.nan_to_num(error), color=COLORS[0], capsize=3, marker="s")
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{v:g}" for v in x])
        axes.minorticks_off()
    axes.set_xlabel("v: steps between two pushes of weights")
    axes.set_ylabel(f"final {SCORE}")
    return figure
