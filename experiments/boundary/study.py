"""`boundary`: where does each scheme collapse as samples grow stale, and what warns first?

Command: python -m experiments.run boundary
Hardware and time: two CPU cores, 240 cells of about 8 CPU-seconds and 4 programs to compile.

Schemes are run at every interval between two synchronisations of the sampler and at every learning
rate; nothing is chosen, so that there is no tuning. A run fell where its Pass@1 was at an
evaluation below .7 of the best before. Signals are judged by whether they were beyond a threshold
before that, the threshold being what one in ten runs of the other seeds that did not fall ever went
beyond; and by how well their mean over the first tenth ranks the runs that fell later, within
equal learning rates, and within equal rates and intervals.

Left out unless asked for: intervals and rates between these (`--intervals`, `--rates`), and schemes
other than a clip, truncated weights, both and neither. An interval as long as the run never renews
the sampler.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.cell import Cell, Watch
from experiments.grid.columns import score
from experiments.grid.figures import LABELS, Picture
from experiments.grid.rows import SCORE, Row, Rows, final, where
from experiments.grid.signals import FALL, alarms, early, fall, fallen, fell, measured, rank
from experiments.grid.study import Stage, Study
from experiments.grid.tables import Section, Table
from experiments.grid.variants import Changes, Variant, accepted, brief, cells_of
from experiments.grid.verdicts import Pick, Relation, claim
from ogrpo.config.train import TrainConfig
from ogrpo.system.values import Count

SCHEMES: dict[str, Changes] = {
    "neither": {"algorithm": "reinforce", "override": {"reduction": "token"}},
    "clip": {"algorithm": "rec_one_side"},
    "weights": {
        "algorithm": "reinforce",
        "override": {"reduction": "token", "weight": "truncated"},
    },
    "clip and weights": {"algorithm": "rec_one_side_is"},
}
"""All with the group's mean as baseline and means over tokens."""

WARNINGS = {
    "ess": -1,
    "ess/sequence": -1,
    "kl/pi_mu": 1,
    "ratio/tail": 1,
    "chi_square": 1,
    "entropy": 1,
    "grad_norm": 1,
    "grad_norm/head": 1,
    "grad_variance": 1,
    "reward": -1,
}
"""Signals, and whether trouble shows as more (1) or less (-1) of them. The variance is measured at
evaluations alone; the training reward is of the sampler's policy and stands for what needs no
signal."""
WATCHED = (*(n for n in WARNINGS if n != "grad_variance"), "clipped", "tokens/completion")

RATES = (2e-4, 6e-4, 2e-3)
SLOW, MIDDLE, FAST = ({"rate": rate, "sync_interval": 100} for rate in RATES)
COMPARED: tuple[tuple[str, str, str, Relation, str, Pick], ...] = (
    ("2e-4", "the clip alone is above no correction", "clip", "above", "neither", SLOW),
    ("6e-4", "the clip alone is above no correction", "clip", "above", "neither", MIDDLE),
    ("2e-3", "the clip alone is above no correction", "clip", "above", "neither", FAST),
    ("2e-4", "weights are above the clip", "weights", "above", "clip", SLOW),
    ("6e-4", "weights are below the clip", "weights", "below", "clip", MIDDLE),
    ("2e-3", "both are below the clip", "clip and weights", "below", "clip", FAST),
)
CLAIMS = tuple(
    claim(f"interval 100, rate {rate}: {text}", one, relation, other, place)
    for rate, text, one, relation, other, place in COMPARED
)
"""Claims at the longest interval."""

EARLY = 0.1
"""The first part of a run, whose means rank the runs that fall later."""


@dataclass(frozen=True)
class BoundaryStudy(Study):
    """Schemes by the age of their samples and by learning rate."""

    name = "boundary"
    question = (
        "Where does each scheme collapse as samples grow stale, and which signal warns first?"
    )
    pages = ("results.md",)
    claims = CLAIMS
    evaluations = 10
    """Falls are known to so fine a grid."""
    known: ClassVar = {"schemes": SCHEMES}
    few: ClassVar = {
        "schemes": ("neither",),
        "intervals": (1, 4),
        "rates": (1e-3, 1e-1),
        "steps": 10,
    }

    steps: Count = 100
    """Steps of a run."""
    schemes: tuple[str, ...] = tuple(SCHEMES)
    """Schemes to run: neither, clip, weights, clip and weights."""
    intervals: tuple[int, ...] = (1, 10, 30, 100)
    """Steps between two synchronisations of the sampler."""
    rates: tuple[float, ...] = RATES
    """Learning rates."""
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def stages(self) -> Sequence[Stage]:
        """Returns all runs at once: nothing is chosen."""
        return (self.runs,)

    def runs(self, _: Rows) -> Sequence[Cell]:
        """Returns every scheme at every interval and rate, which is a place and not a setting."""
        places = []
        for scheme in self.schemes:
            for v in self.intervals:
                stale = {"schedule": {"sync_interval": v}}
                config = accepted(self.configured(), stale, SCHEMES[scheme])
                for rate in self.rates:
                    where = {"sync_interval": v, "rate": rate}
                    variant = Variant(scheme, config, where, watch=Watch(WATCHED, points=50))
                    places.append(replace(variant.with_rate(rate), setting={}))
        return cells_of(places, "report", self.seeds)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the map, the warnings, and what signals say beyond the learning rate."""
        runs = distinct(rows)
        falls = sum(map(fell, runs))
        plane = (rows, self.intervals, self.rates)
        return [
            Section(
                "The map",
                "Final Pass@1, sampled, mean and 95 % t-interval over seeds; in brackets the seeds"
                f" that fell: Pass@1 was at some evaluation below {FALL:g} of the best before.",
                [map_table(*plane)],
                [Picture("map", partial(map_plot, *plane))],
            ),
            Section(
                "Which signal warns first",
                f"{falls} of {len(runs)} different runs fell, as at interval 1 some schemes are"
                " the same. A signal announces a fall if it is beyond its"
                " threshold at an update before the evaluation that shows it. A threshold is what"
                " one in ten of the other seeds' runs without a fall go beyond at some time; false"
                " alarms are the share of all runs without a fall that go beyond it. First: of all"
                " falls, those that no signal announces earlier.",
                [warning_table(runs)],
            ),
            Section(
                "Beyond the learning rate",
                "Chance that a signal's mean over the first tenth of a run ranks one that fell"
                " later above one that did not, ties halved (.5 says nothing): over all pairs of"
                " runs, over pairs of equal learning rates, over pairs of equal rates and"
                " intervals, and of equal schemes too. Runs that fell within that tenth are left"
                " out.",
                [rank_table(runs)],
            ),
        ]


def distinct(rows: Rows) -> Rows:
    """Returns one row of each that are the same run under two names, by their scores."""
    places = {
        (row["seed"], *row["coordinates"].values(), *row["evaluations"][SCORE]): row for row in rows
    }
    return [*places.values()]


def map_table(rows: Rows, intervals: Sequence[int], rates: Sequence[float]) -> Table:
    """Returns schemes and rates by intervals."""

    def cell(trials: Rows) -> str:
        return f"{score()(trials)} ({fallen(trials)})" if trials else "–"

    lines = [
        [scheme, f"{rate:g}"]
        + [cell(where(rows, label=scheme, rate=rate, sync_interval=v)) for v in intervals]
        for scheme in SCHEMES
        for rate in rates
        if where(rows, label=scheme, rate=rate)
    ]
    heads = (f"interval {interval}" for interval in intervals)
    return Table("map", ("scheme", "rate", *heads), lines)


def measured_signals(rows: Rows) -> tuple[str, ...]:
    """Returns the names of the signals that were measured."""
    return tuple(name for name in WARNINGS if any(len(measured(row, name)) for row in rows))


def warning_table(rows: Rows) -> Table:
    """Returns for each signal the falls it warned of, how long before, and its false alarms."""
    signs = {name: WARNINGS[name] for name in measured_signals(rows)}
    pairs = [*zip(rows, alarms(rows, signs, fold=lambda row: row["seed"]), strict=True)]
    bad = [
        {name: max(end - (end if at is None else at), 0.0) for name, at in alarm.items()}
        for row, alarm in pairs
        if (end := fall(row)) is not None
    ]
    good = [alarm for row, alarm in pairs if not fell(row)]

    def share(count: int, whole: int) -> str:
        return f"{count / whole:.0%}" if whole else "–"

    lines = []
    for name in signs:
        ahead = [lead[name] for lead in bad if lead[name] > 0]
        first = [lead for lead in bad if lead[name] == max(lead.values()) > 0]
        false = [alarm for alarm in good if alarm[name] is not None]
        low, middle, high = np.quantile(ahead, [0.25, 0.5, 0.75]) if ahead else [np.nan] * 3
        announced, earliest = share(len(ahead), len(bad)), share(len(first), len(bad))
        before = f"{middle:.0f} ({low:.0f} to {high:.0f})" if ahead else "–"
        false_alarms = share(len(false), len(good))
        lines.append([LABELS.get(name, name), announced, before, earliest, false_alarms])
    heads = ("signal", "falls announced", "updates before, quartiles", "first", "false alarms")
    return Table("warnings", heads, lines)


def rank_table(rows: Rows) -> Table:
    """Returns how well each signal's first tenth ranks runs by whether they fall later."""
    falls = [(row, fall(row)) for row in rows]
    later = [row for row, at in falls if at is None or at > EARLY * row["final"]["updates"]]
    bad = [*map(fell, later)]
    strata: dict[str, Callable[[Row], Hashable] | None] = {
        "all pairs": None,
        "equal rates": lambda row: row["coordinates"]["rate"],
        "equal rates, intervals": lambda row: (*row["coordinates"].values(),),
        "equal schemes, too": lambda row: (row["label"], *row["coordinates"].values()),
    }
    values = {
        LABELS.get(name, name): [sign * early(row, name, EARLY, sign) for row in later]
        for name in measured_signals(rows)
        for sign in [WARNINGS[name]]
    }
    values["the learning rate itself"] = [row["coordinates"]["rate"] for row in later]
    values["the interval itself"] = [row["coordinates"]["sync_interval"] for row in later]
    lines, pairs = [], []
    for name, ranked in values.items():
        ranks = [rank(ranked, bad, key and [*map(key, later)]) for key in strata.values()]
        lines.append([name, *(f"{chance:.2f}" if n else "–" for chance, n in ranks)])
        pairs = [n for _, n in ranks]
    text = f"Pairs: {', '.join(f'{name} {n:,}' for name, n in zip(strata, pairs, strict=True))}."
    return Table("ranks", ("signal", *strata), lines, text)


def map_plot(rows: Rows, intervals: Sequence[int], rates: Sequence[float]) -> Figure:
    """Draws a panel for each scheme: the share of seeds that fell, and the final score in it."""
    schemes = [scheme for scheme in SCHEMES if where(rows, label=scheme)]
    count = max(len(schemes), 1)
    figure = Figure(figsize=(1.4 + 2.9 * count, 1.4 + 0.62 * len(rates)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    image = None
    for axes, scheme in zip(panels, schemes, strict=False):
        cells = [
            [where(rows, label=scheme, rate=r, sync_interval=v) for v in intervals] for r in rates
        ]
        shares = [[np.mean([*map(fell, c)]) if c else np.nan for c in line] for line in cells]
        image = axes.imshow(shares, cmap="Reds", vmin=0, vmax=1.6, aspect="auto", origin="lower")
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
