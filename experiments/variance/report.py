"""What the rows of `variance` say: formulas beside draws, and what staleness costs along a run."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from experiments.grid.cell import place_name
from experiments.grid.choose import groups
from experiments.grid.rows import Row
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, plus_minus
from experiments.variance import figures
from experiments.variance.errors import (
    INTERVALS,
    Vector,
    ages_of,
    best_depth,
    column,
    foreseen_depth,
    over_interval,
    relative_error,
    relative_variance,
)
from experiments.variance.gradients import ESTIMATORS

ByAge = Callable[[Sequence[Row], str, int], Vector]
RULES = {
    "mse/none": "no weights",
    "mse/plain": "plain",
    "mse/√n": "√n",
    "mse/2": "2",
    "mse/root": "τ = J + (n − 1) b(τ)",
    "mse/proposed": "1 ± √(Var r/Var ρ)",
    "mse/self-normalised": "self-normalised",
}


def sections(rows: Sequence[Row]) -> list[Section]:
    """The page."""
    families = [row for row in rows if "pairs" in row]
    runs = [row for row in rows if "ages" in row]
    found = [of_families(families)] if families else []
    return found + (of_runs(runs) if runs else [])


def of_families(rows: Sequence[Row]) -> Section:
    """The exact half."""
    return Section(
        "Formulas beside draws",
        "Exponential tilts of random samplers over 32 answers, rewards 0 or 1 that lean towards"
        " the tilt. Predicted is bias² + variance/n by the proved formulas (for the self-normalised"
        " mean the first order in 1/n, which is no bound); measured is the mean over 20,000"
        " estimates that were drawn. The last column holds errors to a proved upper bound:"
        " 1/n_eff for plain importance sampling, (2/n)(V + o²χ²) for the self-normalised mean.",
        [family_table(rows)],
        [Picture("families", partial(figures.families, rows))],
    )


def of_runs(rows: Sequence[Row]) -> list[Section]:
    """The half along runs of the default task."""
    return [
        Section(
            "How far a policy is from its older self",
            "KL is measured on draws of π, the rest on draws of μ. Proved: 1 + χ² ≥ exp(KL), so"
            " that the effective share 1/(1 + χ²) is at most exp(−KL). Where the measured χ² breaks"
            " this, the draws of μ have not seen what π does.",
            [divergence_table(rows)],
            [Picture("divergence", partial(figures.divergence, rows))],
        ),
        Section(
            "Gradients from stale completions",
            "Error of a batch's gradient of J(π), all parameters, in units of a fresh batch's"
            " variance; advantages leave the sample out, so that whole-sequence weights are"
            " unbiased. (1 + χ²) is what the variance of plain weights would be if the gradient did"
            " not depend on the ratio.",
            [variance_table(rows), error_table(rows)],
            [Picture("gradient", partial(figures.gradient, rows))],
        ),
        Section(
            "What v costs, and how much to pool",
            "With the server renewed every v steps, ages are uniform below v: the mean of the"
            " errors above, interpolated between the ages that were measured. Pooling: the mean of"
            " the batches of the last d steps; biases are taken to point the same way, which is the"
            " worst case. Foreseen is d for unbiased weights of variance v_0 (1 + χ²): one more"
            " batch helps while its variance is below 2 + 1/m times the mean of the m before it.",
            [interval_table(rows), pool_table(rows)],
        ),
        Section(
            "Where to truncate",
            "J(π) from completions of μ: mean of n = 128 terms min(ρ, τ) r, every rule found on"
            " one half of the completions and tried on the other. Errors are over the least that"
            " any cap has on the second half. τ = J + (n − 1) b(τ) is proved for 0/1 rewards; the"
            " band 1 ± √(Var r/Var ρ) is the proposal's, refuted in proofs/errata_proposal.md.",
            [threshold_table(rows)],
            [Picture("thresholds", partial(figures.thresholds, rows))],
        ),
    ]


def family_table(rows: Sequence[Row]) -> Table:
    """How near measured errors are to predicted ones, over all tilts and families."""
    lines = []
    for n in rows[0]["pairs"][0]["estimators"]:
        for name in rows[0]["pairs"][0]["estimators"][n]:
            each = [pair["estimators"][n][name] for row in rows for pair in row["pairs"]]
            quotients = np.array([one["mse/measured"] / one["mse"] for one in each])
            away = [abs(one["mse/measured"] - one["mse"]) > 3 * one["mse/error"] for one in each]
            bounds = [one["mse/measured"] / one["bound"] for one in each if "bound" in one]
            lines.append(
                [
                    n,
                    name,
                    f"{quotients.min():.2f} – {quotients.max():.2f}",
                    f"{sum(away)} of {len(away)}",
                    f"{max(bounds):.2f}" if bounds else "–",
                ]
            )
    heads = ("n", "estimator", "measured over predicted", "beyond 3 errors", "over the bound")
    return Table("families", heads, lines)


def divergence_table(rows: Sequence[Row]) -> Table:
    """KL, chi-square and effective share by age."""
    lines = []
    for place, trials in groups(rows).items():
        for age in ages_of(trials):
            kl, chi, ess = (column(trials, age, name) for name in ("kl", "chi_square", "ess"))
            told = (
                told_of(kl, ".4f"),
                told_of(chi, ".3f"),
                told_of(ess, ".3f"),
                f"{np.mean(1 / (1 + chi)):.3f}",
                f"{np.mean(np.exp(-kl)):.3f}",
            )
            lines.append([place_name(place), f"{age}", *told])
    heads = ("run", "age", "KL(π‖μ), nats", "χ²", "effective share", "1/(1 + χ²)", "exp(−KL)")
    return Table("divergence", heads, lines)


def variance_table(rows: Sequence[Row]) -> Table:
    """Variance by age over that of fresh groups."""
    return _by_age(rows, "gradient-variance", relative_variance, foreseen=True)


def error_table(rows: Sequence[Row]) -> Table:
    """Mean squared error of a batch by age over that of fresh groups."""
    return _by_age(rows, "gradient-error", relative_error, foreseen=False)


def _by_age(rows: Sequence[Row], name: str, of: ByAge, *, foreseen: bool) -> Table:
    ages = ages_of(rows)
    lines = []
    for place, trials in groups(rows).items():
        for estimator in ESTIMATORS:
            told = [told_of(of(trials, estimator, age)) for age in ages]
            lines.append([place_name(place), estimator, *told])
        if foreseen:
            chi = [column(trials, age, "chi_square") for age in ages]
            lines.append([place_name(place), "(1 + χ²)", *(told_of(1 + x) for x in chi)])
    what = "variance" if foreseen else "squared error"
    return Table(name, ("run", f"{what}, weights", *(f"age {age}" for age in ages)), lines)


def interval_table(rows: Sequence[Row]) -> Table:
    """Mean squared error by sync interval."""
    shown = [v for v in INTERVALS if v - 1 <= max(ages_of(rows))]
    lines = [
        [
            place_name(place),
            name,
            *(told_of(over_interval(trials, name, v)) for v in shown),
        ]
        for place, trials in groups(rows).items()
        for name in ESTIMATORS
    ]
    return Table("interval", ("run", "weights", *(f"v = {v}" for v in shown)), lines)


def pool_table(rows: Sequence[Row]) -> Table:
    """How many of the last batches to pool."""
    lines = []
    for place, trials in groups(rows).items():
        for name in ESTIMATORS:
            depth, error = best_depth(trials, name)
            lines.append([place_name(place), name, f"{depth}", f"{error:.2f}"])
        lines.append([place_name(place), "foreseen from χ²", f"{foreseen_depth(trials)}", ""])
    heads = ("run", "weights", "batches to pool", "squared error over a fresh batch's")
    return Table("pool", heads, lines)


def threshold_table(rows: Sequence[Row]) -> Table:
    """The rules for a cap by age."""
    lines = []
    for place, trials in groups(rows).items():
        for age in ages_of(trials):
            best = column(trials, age, "mse/best")
            caps = (told_of(column(trials, age, x)) for x in ("tau/root", "tau/best"))
            over = (told_of(column(trials, age, x) / best) for x in RULES)
            lines.append([place_name(place), f"{age}", *caps, *over])
    heads = ("run", "age", "τ by the root", "best τ", *RULES.values())
    return Table("thresholds", heads, lines)


def told_of(values: Vector, form: str = ".2f") -> str:
    """Mean and 95 % t-interval over seeds."""
    return plus_minus(values.tolist(), form)
