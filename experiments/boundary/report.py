"""What the rows of `boundary` say: where schemes fall, and which signal told of it before."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from experiments.boundary.signs import SCHEMES, WARNINGS
from experiments.grid.choose import final
from experiments.grid.figures import LABELS, all_axes, curve
from experiments.grid.rows import Row, where
from experiments.grid.signals import (
    FALL,
    UPDATES,
    alarms,
    fall,
    fallen,
    fell,
    measured,
    rank,
    stretch,
)
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, score

EARLY = 0.1
"""The first part of a run, whose means rank the runs that fall later."""
BEFORE, AFTER = 50, 20
"""Updates around a fall that are drawn."""


def sections(
    rows: Sequence[Row], intervals: Sequence[int], rates: Sequence[float]
) -> list[Section]:
    """The page."""
    falls = sum(map(fell, rows))
    steepest = [row for row in rows if row["coordinates"]["rate"] == max(rates)]
    return [
        Section(
            "The map",
            "Final Pass@1, sampled, mean and 95 % t-interval over seeds; in brackets the seeds that"
            f" fell: Pass@1 was at some evaluation below {FALL:g} of the best before.",
            [map_table(rows, intervals, rates)],
            [Picture("map", partial(map_plot, rows, intervals, rates))],
        ),
        Section(
            "Which signal warns first",
            f"{falls} of {len(rows)} runs fell. A signal told of a fall if it was beyond its"
            " threshold at an update before the evaluation that showed it; thresholds are what one"
            " in ten of the other seeds' runs that did not fall ever went beyond, and false alarms"
            " are of the runs that did not fall. First: of all falls, those that no signal told of"
            " earlier.",
            [warning_table(rows)],
            [Picture("falls", partial(fall_plot, rows))] if falls else (),
        ),
        Section(
            "Beyond the learning rate",
            "Chance that a signal's mean over the first tenth of a run ranks one that fell later"
            " above one that did not, ties halved (.5 says nothing): over all pairs of runs, over"
            " pairs of equal learning rates, and over pairs of equal rates and intervals. Runs that"
            " fell within that tenth are left out.",
            [rank_table(rows)],
        ),
        Section(
            "Curves",
            "The largest learning rate and the longest interval.",
            pictures=[Picture("axes", partial(all_axes, stalest(steepest)))],
        ),
    ]


def stalest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the longest interval, by their scheme alone."""
    longest = max((row["coordinates"]["sync_interval"] for row in rows), default=0)
    return [{**row, "coordinates": {}} for row in where(rows, sync_interval=longest)]


def map_table(rows: Sequence[Row], intervals: Sequence[int], rates: Sequence[float]) -> Table:
    """Schemes and rates by intervals."""

    def told(trials: Sequence[Row]) -> str:
        return f"{score()(trials)} ({fallen(trials)})" if trials else "–"

    lines = [
        [scheme, f"{rate:g}"]
        + [told(where(rows, label=scheme, rate=rate, sync_interval=v)) for v in intervals]
        for scheme in SCHEMES
        for rate in rates
        if where(rows, label=scheme, rate=rate)
    ]
    heads = (f"interval {interval}" for interval in intervals)
    return Table("map", ("scheme", "rate", *heads), lines)


def told_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The signals that were measured."""
    return tuple(name for name in WARNINGS if any(len(measured(row, name)) for row in rows))


def warning_table(rows: Sequence[Row]) -> Table:
    """For each signal the falls that it told of, how long before, and its false alarms."""
    signs = {name: WARNINGS[name] for name in told_of(rows)}
    found = alarms(rows, signs, fold=lambda row: row["seed"])
    bad = [(fall(row), alarm) for row, alarm in zip(rows, found, strict=True) if fell(row)]
    good = [alarm for row, alarm in zip(rows, found, strict=True) if not fell(row)]
    lines = []
    for name in signs:
        ahead = [lead for at, alarm in bad if (lead := leads(at, alarm)[name]) > 0]
        first = [
            at for at, alarm in bad if leads(at, alarm)[name] == max(leads(at, alarm).values()) > 0
        ]
        false = [alarm for alarm in good if alarm[name] is not None]
        low, middle, high = np.quantile(ahead, [0.25, 0.5, 0.75]) if ahead else [np.nan] * 3
        lines.append(
            [
                LABELS.get(name, name),
                share(len(ahead), len(bad)),
                f"{middle:.0f} ({low:.0f} to {high:.0f})" if ahead else "–",
                share(len(first), len(bad)),
                share(len(false), len(good)),
            ]
        )
    heads = ("signal", "told of the fall", "updates before, quartiles", "first", "false alarms")
    return Table("warnings", heads, lines)


def leads(at: float | None, alarm: Mapping[str, float | None]) -> dict[str, float]:
    """Updates from each signal's alarm to the fall; 0 where it told nothing before."""
    end = at or 0.0
    return {n: max(end - x, 0.0) if x is not None else 0.0 for n, x in alarm.items()}


def share(count: int, whole: int) -> str:
    """A share of runs."""
    return f"{count / whole:.0%}" if whole else "–"


def rank_table(rows: Sequence[Row]) -> Table:
    """How well each signal's first tenth ranks runs by whether they fall later."""
    later = [
        row for row in rows if (at := fall(row)) is None or at > EARLY * row["final"]["updates"]
    ]
    bad = [*map(fell, later)]
    strata: dict[str, Callable[[Row], Hashable] | None] = {
        "all pairs": None,
        "equal rates": lambda row: row["coordinates"]["rate"],
        "equal rates, intervals": lambda row: (*row["coordinates"].values(),),
    }
    values = {
        LABELS.get(name, name): [WARNINGS[name] * early(row, name) for row in later]
        for name in told_of(rows)
    }
    values["the learning rate itself"] = [row["coordinates"]["rate"] for row in later]
    values["the interval itself"] = [row["coordinates"]["sync_interval"] for row in later]
    lines, pairs = [], []
    for name, ranked in values.items():
        found = [rank(ranked, bad, key and [*map(key, later)]) for key in strata.values()]
        lines.append([name, *(f"{chance:.2f}" if n else "–" for chance, n in found)])
        pairs = [n for _, n in found]
    told = f"Pairs: {', '.join(f'{name} {n:,}' for name, n in zip(strata, pairs, strict=True))}."
    return Table("ranks", ("signal", *strata), lines, told)


def early(row: Row, name: str) -> float:
    """A signal's mean over the first tenth; the worst there is where it was never finite."""
    return float(np.nan_to_num(stretch(row, name, 0.0, EARLY), nan=WARNINGS[name] * np.inf))


def map_plot(rows: Sequence[Row], intervals: Sequence[int], rates: Sequence[float]) -> Figure:
    """A panel for each scheme: the share of seeds that fell, and the final score in it."""
    schemes = [scheme for scheme in SCHEMES if where(rows, label=scheme)]
    count = max(len(schemes), 1)
    figure = Figure(figsize=(1.4 + 2.9 * count, 1.4 + 0.62 * len(rates)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    image = None
    for axes, scheme in zip(panels, schemes, strict=False):
        cells = [
            [where(rows, label=scheme, rate=r, sync_interval=v) for v in intervals] for r in rates
        ]
        lost = [
            [np.mean([fell(row) for row in c]) if c else np.nan for c in line] for line in cells
        ]
        image = axes.imshow(lost, cmap="Reds", vmin=0, vmax=1.6, aspect="auto", origin="lower")
        for y, line in enumerate(cells):
            for x, trials in enumerate(line):
                if trials:
                    text = f"{np.mean([final(row) for row in trials]):.2f}"
                    axes.text(x, y, text, ha="center", va="center")
        axes.set_xticks(range(len(intervals)), [f"{v}" for v in intervals])
        axes.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.grid(visible=False)
        axes.set_title(scheme, loc="left", fontsize=10)
        axes.set_xlabel("sync interval")
    panels[0].set_ylabel("learning rate")
    if image is not None:
        bar = figure.colorbar(image, ax=[*panels], label="share of seeds that fell")
        bar.ax.set_ylim(0, 1)
    return figure


def fall_plot(rows: Sequence[Row]) -> Figure:
    """Each signal around the falls, one line a run and their median."""
    names = told_of(rows)
    height = -(-len(names) // 3)
    figure = Figure(figsize=(11.5, 2.5 * height), layout="constrained")
    panels = [*figure.subplots(height, 3, squeeze=False).flat]
    places = np.arange(-BEFORE, AFTER + 1.0, 2.0)
    for axes, name in zip(panels, names, strict=False):
        found, ends = [], []
        for row in rows:
            x, y = curve(row, UPDATES, name)
            if (at := fall(row)) is not None and len(x):
                near = y[(x >= at - BEFORE) & (x <= at + AFTER)]
                ends += [near.min(), near.max()] if len(near) else []
                axes.plot(x - at, y, color="#3366aa", linewidth=0.4, alpha=0.3)
                found.append(np.interp(places, x - at, y, left=np.nan, right=np.nan))
        if found:
            known = np.isfinite(found).any(axis=0)
            axes.plot(places[known], np.nanmedian(np.array(found)[:, known], axis=0), color="black")
        axes.axvline(0, color="#c2453d", linewidth=0.8)
        axes.set_xlim(-BEFORE, AFTER)
        axes.set_title(LABELS.get(name, name), fontsize=10, loc="left")
        if name in SPREAD:
            axes.set_yscale("symlog", linthresh=SPREAD[name])
        if ends and max(ends) > min(ends):
            axes.set_ylim(min(ends), max(ends))
        axes.set_xlabel("updates after the fall was seen", fontsize=9)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return figure


SPREAD = {"kl/pi_mu": 1e-2, "chi_square": 1.0, "grad_variance": 1.0}
"""Signals that are drawn in logarithms, and from where on."""
