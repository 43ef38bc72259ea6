"""`noise`: does RED-Weight amplify false rewards?

Command: python -m experiments.run noise
Hardware and time: two CPU cores, 180 cells of about 4 CPU-seconds and 4 programs to compile.

A share of the training rewards is flipped (`--reward.flip`); held-out answers are
judged as they are. Each method loses some Pass@1 by that; what RED-Weight loses beyond REINFORCE,
seed by seed, is what it amplifies. Each method has its own learning rate at each share of flips,
the best of `rates` on problems whose judge makes no mistake, as one would have it.

Left out unless asked for: other methods (`--methods`, by the names of `rec`), stale samples
(`--base.schedule.sync-interval`) and flips of one kind of reward alone, which has no option.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.columns import ENTROPY, FELL, GREEDY, LENGTH, SAMPLED, Column, against_at
from experiments.grid.figures import COLORS, Picture
from experiments.grid.rows import Rows, by_seed, groups, reported, where
from experiments.grid.signals import ending
from experiments.grid.study import Crossing, Stage, TunedStudy
from experiments.grid.tables import Section, Table, by_value, scores_at, summary
from experiments.grid.verdicts import Claim, Difference, mean_and_interval
from experiments.rec.study import METHODS
from ogrpo.system.values import require

NOISY = (0.1, 0.2, 0.3, 0.4)


def amplified(rows: Rows, method: str, other: str, flip: float) -> Difference:
    """Returns what a method loses by flips beyond another, over the seeds that all have."""
    ends = [
        by_seed(where(rows, label=label, flips=share))
        for label in (method, other)
        for share in (0.0, flip)
    ]
    shared = [seed for seed in ends[0] if all(seed in of for of in ends)]
    true, noisy, other_true, other_noisy = ([of[seed] for seed in shared] for of in ends)
    values = np.subtract(true, noisy) - np.subtract(other_true, other_noisy)
    return Difference(tuple(values.tolist()))


CLAIMS = tuple(
    Claim(
        f"RED-Weight amplifies: it loses more than REINFORCE with {flip:.0%} flipped",
        *({"label": "RED-Weight", "flips": flip}, "above", {"label": "REINFORCE", "flips": flip}),
        of=lambda rows, flip=flip: amplified(reported(rows), "RED-Weight", "REINFORCE", flip),
    )
    for flip in NOISY
)
"""Losses beyond the first method's."""


@dataclass(frozen=True)
class NoiseStudy(TunedStudy):
    """Methods by the share of rewards that are false."""

    name = "noise"
    question = "Does RED-Weight amplify false rewards?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("REINFORCE", "RED-Weight"), "flips": (0.0, 0.4)}

    methods: tuple[str, ...] = ("REINFORCE", "GRPO", "RED-Drop", "RED-Weight")
    """Which to run, by the names of `rec`; what the others lose is held against the first."""
    flips: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    """Shares of the training rewards that are flipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        message = f"flips is {self.flips}: losses are held against true rewards, add 0"
        require(0.0 in self.flips, message)

    @property
    def crossing(self) -> Crossing:
        """Every method with every share of flips."""
        values = {flip: {"reward": {"flip": flip}} for flip in self.flips}
        return Crossing(self.methods, METHODS, "flips", values)

    def stages(self) -> Sequence[Stage]:
        """The cells of one share of flips after those of another: a judge is made for each."""

        def by_flips(stage: Stage) -> Stage:
            return lambda rows: sorted(stage(rows), key=lambda cell: cell.coordinates["flips"])

        return [by_flips(stage) for stage in super().stages()]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns what methods lose, and what that is beyond the first."""
        final_rows, methods, first = reported(rows), self.methods, self.methods[0]
        heads = {flip: f"{flip:.0%} flipped" for flip in self.flips}
        noisy = [flip for flip in self.flips if flip]
        lost = [
            [method, *(amplified(final_rows, method, first, flip) for flip in noisy)]
            for method in methods[1:]
        ]
        columns = (
            *(SAMPLED, GREEDY, FELL, Column("training reward", ending("reward", ".3f"))),
            *(ENTROPY, LENGTH),
            Column(f"against {first}", against_at(final_rows, first, "flips")),
        )
        flipped = tuple(heads[flip] for flip in noisy)
        picture = Picture("flips", partial(flip_plot, final_rows, methods))
        return [
            Section(
                "Pass@1 by the share of false rewards",
                "Final held-out Pass@1, sampled, its answers judged truly: mean and 95 %"
                " t-interval.",
                [scores_at(final_rows, methods, "flips", heads)],
                [picture] if final_rows else (),
            ),
            Section(
                f"What is lost beyond {first}",
                f"Pass@1 without flips less Pass@1 with them, less the same of {first}, seed by"
                " seed: above 0 the method amplifies the noise.",
                [Table("amplified", ("method", *flipped), lost)],
            ),
            Section("All of it", "", [summary(rows, columns, order=by_value("flips", methods))]),
        ]


def flip_plot(rows: Rows, methods: Sequence[str]) -> Figure:
    """Draws final scores by the share of flips, seeds as points and their mean as a line."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for n, method in enumerate(methods):
        trials_of = groups(where(rows, label=method)).values()
        ends = {t[0]["coordinates"]["flips"]: [*by_seed(t).values()] for t in trials_of}
        flips = sorted(ends)
        color = COLORS[n % len(COLORS)]
        for flip in flips:
            places = [flip + 0.004 * (n - len(methods) / 2)] * len(ends[flip])
            axes.plot(places, ends[flip], ".", color=color, alpha=0.4)
        means, errors = np.array([mean_and_interval(ends[flip]) for flip in flips]).T
        axes.plot(flips, means, color=color, label=method)
        axes.fill_between(flips, means - errors, means + errors, color=color, alpha=0.15)
    axes.set_xlabel("share of the training rewards that is flipped")
    axes.set_ylabel("final Pass@1, sampled, judged truly")
    axes.legend()
    return figure
