"""Plots of a run, each a function from records to a matplotlib figure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ogrpo.report.scores import (
    MEAN_REWARD,
    PASS_AT_1,
    evaluations,
    reward_names,
    sampled,
    scores,
)
from ogrpo.system.files import replacing

Record = dict[str, Any]
BLUE, ORANGE, GREEN, GREY = "#3366aa", "#dd7722", "#338855", "#888888"
STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "legend.frameon": False,
}


def points(records: list[Record], key: str) -> tuple[list[float], list[float]]:
    """Returns completions and values wherever the value was measured."""
    known = [r for r in records if r.get(key) is not None]
    return [r["completions"] for r in known], [r[key] for r in known]


def _legend(axes: Axes, **more: Any) -> None:
    """A legend, unless nothing was drawn: a run can stop before its first update."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**more)


def _trend(axes: Axes, records: list[Record], key: str, label: str, color: str) -> None:
    """Draws every step faintly, and a running mean over a twentieth of the run."""
    x, y = points(records, key)
    if not y:  # a run that was stopped before its first step
        return
    width = max(1, len(y) // 20)
    kernel = np.ones(width)
    smooth = np.convolve(y, kernel, "same") / np.convolve(np.ones(len(y)), kernel, "same")
    axes.plot(x, y, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(x, smooth, label=label, color=color)


def _with_band(axes: Axes, records: list[Record], key: str, label: str, color: str) -> None:
    x, y = points(records, key)
    axes.plot(x, y, label=label, color=color, marker="o", markersize=4)
    low, high = points(records, f"{key}/low")[1], points(records, f"{key}/high")[1]
    if len(low) == len(high) == len(x):  # one prompt alone has no interval
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def heldout(records: list[Record]) -> Figure:
    """Draws the held-out headline with its confidence band: Pass@1, or the mean reward."""
    evaluated = evaluations(records)
    figures = scores(evaluated)
    prefix = PASS_AT_1 if figures and figures[0].is_share else MEAN_REWARD
    figure, axes = _figure("Held-out Pass@1" if prefix == PASS_AT_1 else "Held-out mean reward")
    _with_band(axes, evaluated, f"{prefix}/greedy", "greedy", GREEN)
    _with_band(axes, evaluated, f"{prefix}/sampled", sampled(evaluated[0]), BLUE)
    if prefix == PASS_AT_1:
        axes.set_ylim(0, 1)
    _legend(axes, loc="lower right")
    return figure


def rewards(records: list[Record]) -> Figure:
    """Draws each reward's mean on held-out problems, sampled."""
    figure, axes = _figure("Held-out rewards, each by itself")
    evaluated = evaluations(records)
    for name in reward_names(evaluated):
        x, y = points(evaluated, f"{MEAN_REWARD}/{name}/sampled")
        axes.plot(x, y, label=f" {name}", marker="o", markersize=4)
    _legend(axes, fontsize=9)
    for text in legend.get_texts() if (legend := axes.get_legend()) else ():
        text.set_parse_math(False)  # a reward may have two dollar signs in its name
    return figure


def reward(records: list[Record]) -> Figure:
    """Draws the mean reward of training batches, and the share of groups without variance."""
    figure, axes = _figure("Training reward")
    _trend(axes, records, "reward", "mean reward", BLUE)
    earned = points(records, "reward")[1]
    shares = axes
    if earned and not 0 <= min(earned) <= max(earned) <= 1:
        axes.set_ylabel("reward")
        shares = axes.twinx()
        shares.grid(False)
        shares.set_ylabel("share")
        shares.spines["right"].set_visible(True)
    _trend(shares, records, "zero_variance", "groups without variance (share)", ORANGE)
    _trend(shares, records, "truncated", "truncated completions (share)", GREY)
    shares.set_ylim(0, 1)
    handles = [h for a in dict.fromkeys((axes, shares)) for h in a.get_legend_handles_labels()[0]]
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0.93), fontsize=9)
    return figure


def off_policy(records: list[Record]) -> Figure:
    """Draws effective sample size and clipping."""
    figure, axes = _figure("Effective sample size and clipping")
    _trend(axes, records, "ess", "effective sample size (share of tokens)", BLUE)
    _trend(axes, records, "clipped", "clipped (share of tokens)", ORANGE)
    axes.set_ylim(-0.02, 1.04)
    _legend(axes, loc="center right")
    return figure


def divergence(records: list[Record]) -> Figure:
    """Draws the divergence of the policy from the one that sampled."""
    figure, axes = _figure("Divergence from the sampler")
    _trend(axes, records, "kl/mu_pi", "KL(μ‖π), nats a token", GREEN)
    _trend(axes, records, "mismatch", "|log π − log μ| before the step, nats a token", GREY)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def entropy(records: list[Record]) -> Figure:
    """Draws the policy's entropy on the tokens it was trained on."""
    figure, axes = _figure("Entropy")
    _trend(axes, records, "entropy", "nats a token", BLUE)
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def certificate(records: list[Record]) -> Figure:
    """Draws the certified improvement of each server period."""
    figure, axes = _figure("Improvement by each server period's updates")
    for name, label, color in (
        ("mean", "unbiased estimate", GREY),
        ("bound", "certified lower limit", GREEN),
    ):
        axes.plot(*points(records, f"certificate/{name}"), ".-", label=label, color=color)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("reward")
    _legend(axes)
    return figure


def seconds(records: list[Record]) -> Figure:
    """Draws the wall time of each phase."""
    figure, axes = _figure("Wall time by phase")
    prefix = "seconds/"
    phases = [key.removeprefix(prefix) for key in records[-1] if key.startswith(prefix)]
    totals = [sum(r[prefix + phase] for r in records) for phase in phases]
    axes.barh(phases, totals, color=BLUE)
    axes.bar_label(axes.containers[0], fmt="%.1f s", padding=3)  # pyright: ignore[reportArgumentType]
    axes.invert_yaxis()
    axes.set_xlabel("seconds (the first step of each phase includes compilation)")
    return figure


def pushes(records: list[Record]) -> list[Record]:
    """Returns the records of the steps that began with a push of weights to the servers."""
    counts = [r.get("sync/count", 0) for r in records]
    before = [0, *counts[:-1]]
    return [r for r, count, last in zip(records, counts, before, strict=True) if count > last]


ROOM = 1.4
"""Height of the axes over that of the highest value, for a legend to stand in."""
PUSH_PHASES = (
    ("sync/write_seconds", "written by the trainer", BLUE),
    ("sync/paused_seconds", "servers paused, loading", ORANGE),
    ("sync/prove_seconds", "proven by a probe", GREEN),
)


def push_seconds(records: list[Record]) -> Figure:
    """Draws the seconds of each push of weights, by phase."""
    figure, axes = _figure("Seconds of each push of weights")
    pushed = pushes(records)
    x = [r["completions"] for r in pushed]
    width = 0.7 * records[-1]["completions"] / len(pushed)
    floor = np.zeros(len(pushed))
    for key, label, color in PUSH_PHASES:
        heights = np.array([r[key] for r in pushed])
        axes.bar(x, heights, width, bottom=floor, label=label, color=color)
        floor = floor + heights
    axes.set_ylim(0, ROOM * floor.max())
    _legend(axes, loc="upper right", fontsize=9)
    return figure


def servers(records: list[Record]) -> Figure:
    """Draws the load of the servers, at each step's peak."""
    figure, axes = _figure("Servers: requests and cache, peak of each step")
    _trend(axes, records, "server/running", "requests running", BLUE)
    _trend(axes, records, "server/waiting", "requests waiting", ORANGE)
    axes.set_ylim(0, ROOM * max(1, *points(records, "server/running")[1]))
    axes.set_ylabel("requests")
    cache = axes.twinx()
    cache.grid(False)
    _trend(cache, records, "server/kv_cache_usage", "KV cache in use (right)", GREEN)
    cache.set_ylim(0, 1)
    cache.spines["right"].set_visible(True)
    handles = [h for a in (axes, cache) for h in a.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, loc="upper left", fontsize=9)
    return figure


PLOTS: dict[str, Callable[[list[Record]], Figure]] = {
    "heldout": heldout,
    "reward": reward,
    "off_policy": off_policy,
    "divergence": divergence,
    "entropy": entropy,
    "seconds": seconds,
}


def plots(records: list[Record]) -> dict[str, Callable[[list[Record]], Figure]]:
    """Returns the plots that the records have something for."""
    certified = any(r.get("certificate/mean") is not None for r in records)
    several = len(reward_names(evaluations(records))) > 1
    return {
        **PLOTS,
        **({"rewards": rewards} if several else {}),
        **({"certificate": certificate} if certified else {}),
        **(SERVER_PLOTS if pushes(records) else {}),
    }


SERVER_PLOTS: dict[str, Callable[[list[Record]], Figure]] = {
    "push_seconds": push_seconds,
    "servers": servers,
}
"""Drawn of runs that sample from external servers."""


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("completions collected")
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, whole or not at all."""
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png")


def save_plots(records: list[Record], folder: Path) -> list[Path]:
    """Draws every plot as a PNG."""
    folder.mkdir(exist_ok=True)
    paths = []
    with mpl.rc_context(STYLE):
        for name, plot in plots(records).items():
            path = folder / f"{name}.png"
            save_figure(plot(records), path)
            paths.append(path)
    return paths
