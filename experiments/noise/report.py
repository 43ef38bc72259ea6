"""What the rows of `noise` say: what methods lose by false rewards, and who loses more."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.choose import by_seed, groups, reported
from experiments.grid.crossed import against_at, by_value
from experiments.grid.figures import COLORS, all_axes, small_multiples
from experiments.grid.rows import Row, where
from experiments.grid.signals import ending, fallen
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, Value, score, summary
from experiments.grid.verdicts import Claim, Difference, mean_and_interval
from experiments.noise.shares import false_share

SIGNALS = ("pass@1/sampled", "reward", "kl/pi_mu", "entropy", "tokens/completion", "grad_norm")
NOISY = (0.1, 0.2, 0.3, 0.4)
CHANCES = (0.1, 0.35, 0.7)
"""Chances of a right completion that shares of false advantages are printed for."""


def sections(rows: Sequence[Row], methods: Sequence[str], flips: Sequence[float]) -> list[Section]:
    """The page."""
    told = reported(rows)
    return [
        Section(
            "Pass@1 by the share of false rewards",
            "Final held-out Pass@1, sampled, its answers judged truly: mean and 95 % t-interval.",
            [by_flip(told, methods, flips, "scores")],
            [Picture("flips", partial(flip_plot, told, methods))] if told else (),
        ),
        Section(
            f"What is lost beyond {methods[0]}",
            f"Pass@1 without flips less Pass@1 with them, less the same of {methods[0]}, seed by"
            " seed: above 0 the method amplifies the noise.",
            [by_flip(told, methods, flips, "amplified")],
        ),
        Section(
            "Where the false rewards go",
            "Share of the absolute advantages that lies on completions judged wrongly, computed"
            " for groups of 8 and without a run, by the chance p of a right completion.",
            [share_table(methods, flips)],
        ),
        Section("All of it", "", [whole_table(rows, methods)]),
        *(curves(told, flip) for flip in (min(flips), max(flips)) if where(told, flips=flip)),
    ]


def by_flip(
    told: Sequence[Row], methods: Sequence[str], flips: Sequence[float], name: str
) -> Table:
    """Methods by shares of flips: the score, or the loss beyond the first method's."""

    def cell(method: str, flip: float) -> Value:
        if name == "scores":
            trials = where(told, label=method, flips=flip)
            return score()(trials) if trials else "–"
        return amplified(told, method, methods[0], flip)

    kept = flips if name == "scores" else [flip for flip in flips if flip]
    listed = methods if name == "scores" else methods[1:]
    lines = [[method, *(cell(method, flip) for flip in kept)] for method in listed]
    return Table(name, ("method", *(f"{flip:.0%} flipped" for flip in kept)), lines)


def amplified(told: Sequence[Row], method: str, other: str, flip: float) -> Difference:
    """What a method loses by flips beyond what another loses, over the seeds that all have."""
    ends = [
        by_seed(where(told, label=label, flips=share))
        for label in (method, other)
        for share in (0.0, flip)
    ]
    shared = [seed for seed in ends[0] if all(seed in of for of in ends)]
    true, noisy, other_true, other_noisy = ([of[seed] for seed in shared] for of in ends)
    values = np.subtract(true, noisy) - np.subtract(other_true, other_noisy)
    return Difference(tuple(values.tolist()))


def share_table(methods: Sequence[str], flips: Sequence[float]) -> Table:
    """The share of the advantages on wrongly judged completions."""
    noisy = [flip for flip in flips if flip]
    lines = [
        [method, f"{p:g}", *(f"{false_share(method, p, flip):.2f}" for flip in noisy)]
        for p in CHANCES
        for method in methods
    ]
    return Table("shares", ("method", "p", *(f"{flip:.0%} flipped" for flip in noisy)), lines)


def whole_table(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    """Every method at every share, with its signals at the end."""
    return summary(
        rows,
        (
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("fell", fallen),
            ("training reward", ending("reward", ".3f")),
            ("entropy", ending("entropy", ".3f")),
            ("tokens a completion", ending("tokens/completion", ".1f")),
            (f"against {methods[0]}", against_at(reported(rows), methods[0], "flips")),
        ),
        order=by_value("flips", methods),
    )


def flip_plot(told: Sequence[Row], methods: Sequence[str]) -> Figure:
    """Final scores by the share of flips, seeds as points and their mean as a line."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for n, method in enumerate(methods):
        found = groups(where(told, label=method)).values()
        ends = {trials[0]["coordinates"]["flips"]: [*by_seed(trials).values()] for trials in found}
        flips = sorted(ends)
        color = COLORS[n % len(COLORS)]
        for flip in flips:
            places = [flip + 0.004 * (n - len(methods) / 2)] * len(ends[flip])
            axes.plot(places, ends[flip], ".", color=color, alpha=0.4)
        means, errors = np.array([mean_and_interval(ends[flip]) for flip in flips]).T
        axes.plot(flips, means, color=color, label=method)
        axes.fill_between(flips, means - errors, means + errors, color=color, alpha=0.15)
    axes.set_xlabel("share of the training rewards told the other way round")
    axes.set_ylabel("final Pass@1, sampled, judged truly")
    axes.legend()
    return figure


def curves(told: Sequence[Row], flip: float) -> Section:
    """Curves and signals at one share of flips."""
    here = [{**row, "coordinates": {}} for row in where(told, flips=flip)]
    slug = f"flips-{100 * flip:.0f}"
    draw = partial(small_multiples, here, SIGNALS, axis="updates")
    axes = Picture(f"{slug}-axes", partial(all_axes, here))
    return Section(f"Curves, {flip:.0%} flipped", "", (), [Picture(f"{slug}-signals", draw), axes])


CLAIMS = tuple(
    Claim(
        f"RED-Weight amplifies: it loses more than REINFORCE with {flip:.0%} flipped",
        *({"label": "RED-Weight", "flips": flip}, "above", {"label": "REINFORCE", "flips": flip}),
        of=lambda rows, flip=flip: amplified(reported(rows), "RED-Weight", "REINFORCE", flip),
    )
    for flip in NOISY
)
"""Losses beyond the first method's."""
