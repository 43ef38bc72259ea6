"""`variance`: what does staleness cost the estimators, and do the proved formulas say so?

Command: python -m experiments.run variance
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

Runs of the default task: gradients of a run's last policy from its older ones, by age. `bounds` has
the improvement bounds and the certificate; this study has the estimators' errors.

Left out for time: runs are 40 steps on policy at two learning rates, and 64 groups an age
(`--groups 512` narrows the bias, whose square is the noisiest figure here).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.grid.cell import Cell, place_name
from experiments.grid.columns import plus_minus
from experiments.grid.figures import COLORS, Picture, legend_below
from experiments.grid.rows import Row, Rows, groups
from experiments.grid.study import Stage, Study
from experiments.grid.tables import Section, Table
from experiments.grid.variants import brief
from experiments.grid.verdicts import mean_and_interval
from experiments.variance.along import BATCH, ESTIMATORS, Along
from ogrpo.config.train import TrainConfig
from ogrpo.system.values import Count

Vector = NDArray[np.float64]
RUN = "on-policy run"
RULES = {
    "mse/none": "no weights",
    "mse/plain": "plain",
    "mse/√n": "√n",
    "mse/2": "2",
    "mse/root": "τ = J + (n − 1) b(τ)",
    "mse/proposed": "1 ± √(Var r/Var ρ)",
    "mse/self-normalised": "self-normalised",
}
GRADIENTS = (
    "Error of a batch's gradient of J(π), all parameters, in units of a fresh batch's variance;"
    " advantages leave the sample out, so that whole-sequence weights are unbiased."
)
THRESHOLDS = (
    "J(π) from completions of μ: mean of n = 128 terms min(ρ, τ) r, every rule found on one half of"
    " the completions and tried on the other. Errors are over the least that any cap has on the"
    " second half. τ = J + (n − 1) b(τ) is proved for 0/1 rewards; the band 1 ± √(Var r/Var ρ) is"
    " the proposal's, refuted in proofs/errata_proposal.md."
)


@dataclass(frozen=True)
class VarianceStudy(Study):
    """Errors of estimators against staleness."""

    name = "variance"
    question = "What does staleness cost the estimators, and do the proved formulas say so?"
    pages = ("results.md",)
    few: ClassVar = {"rates": (1e-3,), "ages": (0, 1, 3), "groups": 16}

    steps: Count = 40
    """Steps of a run; its oldest sampler can be so old."""
    rates: tuple[float, ...] = (3e-4, 1e-3)
    """Learning rates of the runs: how fast a policy leaves its sampler."""
    ages: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40)
    """Ages of the samplers, in steps."""
    groups: int = 64
    """Prompts, each with one group an age."""
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for rate in self.rates:
            self.along(self.seeds[0], rate)

    def stages(self) -> Sequence[Stage]:
        """Returns one stage, the runs of every seed: nothing is chosen."""
        cell = partial(Cell, RUN, "report", measure="experiments.variance.along:measure")
        pairs = [(seed, rate) for seed in self.seeds for rate in self.rates]
        runs = [cell(self.along(seed, rate), {"rate": rate}) for seed, rate in pairs]
        return (lambda _: runs,)

    def along(self, seed: int, rate: float) -> Along:
        """Returns a run that collects on policy and evaluates as little as it may."""
        config = self.configured(seed=seed)
        schedule = replace(config.schedule, sync_interval=1, evaluate_every=self.steps)
        few = replace(config.evaluation, prompts=16, gradient_variance=False)
        optimizer = replace(config.optimizer, learning_rate=rate)
        train = replace(config, schedule=schedule, evaluation=few, optimizer=optimizer)
        return Along(train, self.ages, self.groups)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns what staleness costs."""
        runs = [row for row in rows if "ages" in row]
        if not runs:
            return []
        heading = "Gradients from stale completions"
        picture = Picture("gradient", partial(gradient_plot, runs))
        return [
            Section(heading, GRADIENTS, [error_table(runs)], [picture]),
            Section("Where to truncate", THRESHOLDS, [threshold_table(runs)]),
        ]


def error_table(rows: Rows) -> Table:
    """Returns the mean squared error by age over a fresh batch's variance."""
    ages, lines = ages_of(rows), []
    for place, trials in groups(rows).items():
        for name in ESTIMATORS:
            errors = (plus_minus(relative_error(trials, name, age), ".2f") for age in ages)
            lines.append([place_name(place), name, *errors])
    heads = ("run", "squared error, weights", *(f"age {age}" for age in ages))
    return Table("gradient-error", heads, lines)


def threshold_table(rows: Rows) -> Table:
    """Returns the rules for a cap by age."""
    lines = []
    for place, trials in groups(rows).items():
        for age in ages_of(trials):
            best = column(trials, age, "mse/best")
            caps = [column(trials, age, x) for x in ("tau/root", "tau/best")]
            over = [column(trials, age, x) / best for x in RULES]
            means = (plus_minus(values, ".2f") for values in (*caps, *over))
            lines.append([place_name(place), f"{age}", *means])
    heads = ("run", "age", "τ by the root", "best τ", *RULES.values())
    return Table("thresholds", heads, lines)


def ages_of(rows: Rows) -> list[int]:
    """Returns the ages that all rows have."""
    return sorted(set.intersection(*({one["age"] for one in row["ages"]} for row in rows)))


def at_age(row: Row, age: int) -> Row:
    """Returns the part of a row that is of an age."""
    return next(one for one in row["ages"] if one["age"] == age)


def column(rows: Rows, age: int, name: str) -> Vector:
    """Returns a figure at an age, seed by seed: of the divergences, or of the estimates of J."""
    ages = [at_age(row, age) for row in rows]
    return np.array([{**one, **one["value"]}[name] for one in ages], np.float64)  # None is NaN


def relative_variance(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the variance of a group's gradient over a fresh one's, seed by seed."""
    return _moment(rows, estimator, age, "variance") / _moment(rows, "none", 0, "variance")


def relative_error(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the mean squared error of a batch over a fresh batch's variance, seed by seed.

    The squared bias is unbiased and may be below 0 in a seed; its mean over seeds is what counts.
    """
    bias2 = _moment(rows, estimator, age, "bias2") / _moment(rows, "none", 0, "variance")
    return relative_variance(rows, estimator, age) + BATCH * bias2


def _moment(rows: Rows, estimator: str, age: int, name: str) -> Vector:
    return np.array([at_age(row, age)["gradient"][estimator][name] for row in rows], np.float64)


def gradient_plot(rows: Rows) -> Figure:
    """Draws variance and error of gradients against age, a line of panels for each run."""
    runs, shown = groups(rows), {"variance": relative_variance, "squared error": relative_error}
    figure = Figure(figsize=(10.5, 3.4 * len(runs) + 0.8), layout="constrained")
    grid = figure.subplots(len(runs), 2, sharex=True, sharey="col", squeeze=False)
    for line, (place, trials) in zip(grid, runs.items(), strict=True):
        ages = ages_of(trials)
        for axes, (what, of) in zip(line, shown.items(), strict=True):
            for name, color in zip(ESTIMATORS, COLORS, strict=False):
                mean, half = np.array([mean_and_interval(of(trials, name, age)) for age in ages]).T
                axes.plot(ages, mean, "o-", color=color, label=name, markersize=3.5)
                axes.fill_between(ages, mean - half, mean + half, color=color, alpha=0.12)
            axes.set_xscale("symlog", linthresh=1)
            axes.set_xticks(ages, [f"{age}" for age in ages])
            axes.set_yscale("log")
            axes.set_ylabel(f"{what}, over a fresh batch's")
            axes.set_title(place_name(place), loc="left", fontsize=10)
            axes.set_xlabel("age of the sampler, steps")
        chi = [1 + column(trials, age, "chi_square").mean() for age in ages]
        line[0].plot(ages, chi, "k--", linewidth=1, label="1 + χ²")
    legend_below(figure, 3)
    return figure
