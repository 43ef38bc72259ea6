"""Errors of gradients by age, from rows: what is proportional to a fresh batch's variance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.grid.rows import Row
from experiments.variance.along import BATCH

Vector = NDArray[np.float64]
FRESH = "none"
INTERVALS = (1, 2, 5, 10, 20, 40)


def ages_of(rows: Sequence[Row]) -> list[int]:
    """The ages that all rows have."""
    return sorted(set.intersection(*({one["age"] for one in row["ages"]} for row in rows)))


def column(rows: Sequence[Row], age: int, name: str) -> Vector:
    """A figure at an age, seed by seed: of the divergences, or of the estimates of J."""
    found = [_at(row, age) for row in rows]
    return np.array([_number({**one, **one["value"]}[name]) for one in found])


def relative_variance(rows: Sequence[Row], estimator: str, age: int) -> Vector:
    """Variance of a group's gradient over a fresh one's, seed by seed."""
    return _moment(rows, estimator, age, "variance") / _fresh(rows)


def relative_error(rows: Sequence[Row], estimator: str, age: int) -> Vector:
    """Mean squared error of a batch over a fresh batch's variance, seed by seed.

    The squared bias is unbiased and may be below 0 in a seed; its mean over seeds is what counts.
    """
    return relative_variance(rows, estimator, age) + _bias2(rows, estimator, age)


def over_interval(rows: Sequence[Row], estimator: str, v: int) -> Vector:
    """The mean error over ages 0 to v - 1."""
    errors = np.array([relative_error(rows, estimator, age) for age in ages_of(rows)])
    return np.array([_between(rows, series)[:v].mean() for series in errors.T])


def best_depth(rows: Sequence[Row], estimator: str) -> tuple[int, float]:
    """How many of the last batches to pool for the least error, and that error; 1 is fresh alone.

    Over the seeds' means; the biases of the batches are taken to point the same way.
    """
    ages = ages_of(rows)
    variance = [relative_variance(rows, estimator, age).mean() for age in ages]
    bias = [np.sqrt(max(_bias2(rows, estimator, age).mean(), 0)) for age in ages]
    return _least(_between(rows, np.array(variance)), _between(rows, np.array(bias)))


def foreseen_depth(rows: Sequence[Row]) -> int:
    """The same from chi-square alone: unbiased weights of variance v_0 (1 + chi^2)."""
    chi = [max(float(column(rows, age, "chi_square").mean()), 0.0) for age in ages_of(rows)]
    variance = _between(rows, 1 + np.array(chi))
    return _least(variance, 0 * variance)[0]


def _least(variance: Vector, bias: Vector) -> tuple[int, float]:
    depth = np.arange(1, len(variance) + 1)
    errors = np.cumsum(variance) / depth**2 + (np.cumsum(bias) / depth) ** 2
    best = int(np.argmin(errors))
    return best + 1, float(errors[best])


def _between(rows: Sequence[Row], values: Vector) -> Vector:
    """A series over the ages that were measured, at every age."""
    ages = ages_of(rows)
    return np.interp(np.arange(max(ages) + 1), ages, values)


def _fresh(rows: Sequence[Row]) -> Vector:
    return _moment(rows, FRESH, 0, "variance")


def _bias2(rows: Sequence[Row], estimator: str, age: int) -> Vector:
    return BATCH * _moment(rows, estimator, age, "bias2") / _fresh(rows)


def _moment(rows: Sequence[Row], estimator: str, age: int, name: str) -> Vector:
    return np.array([_number(_at(row, age)["gradient"][estimator][name]) for row in rows])


def _at(row: Row, age: int) -> Row:
    return next(one for one in row["ages"] if one["age"] == age)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
