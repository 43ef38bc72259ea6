"""Errors of gradients by age, from rows: what is proportional to a fresh batch's variance."""

import numpy as np
from numpy.typing import NDArray

from experiments.grid.rows import Row, Rows
from experiments.variance.along import BATCH

Vector = NDArray[np.float64]
INTERVALS = (1, 2, 5, 10, 20, 40)


def ages_of(rows: Rows) -> list[int]:
    """Returns the ages that all rows have."""
    return sorted(set.intersection(*({one["age"] for one in row["ages"]} for row in rows)))


def column(rows: Rows, age: int, name: str) -> Vector:
    """Returns a figure at an age, seed by seed: of the divergences, or of the estimates of J."""
    ages = [_at(row, age) for row in rows]
    return np.array([{**one, **one["value"]}[name] for one in ages], np.float64)  # None is NaN


def relative_variance(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the variance of a group's gradient over a fresh one's, seed by seed."""
    return _moment(rows, estimator, age, "variance") / _moment(rows, "none", 0, "variance")


def relative_bias2(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the squared bias over a fresh batch's variance, seed by seed."""
    return BATCH * _moment(rows, estimator, age, "bias2") / _moment(rows, "none", 0, "variance")


def relative_error(rows: Rows, estimator: str, age: int) -> Vector:
    """Returns the mean squared error of a batch over a fresh batch's variance, seed by seed.

    The squared bias is unbiased and may be below 0 in a seed; its mean over seeds is what counts.
    """
    return relative_variance(rows, estimator, age) + relative_bias2(rows, estimator, age)


def over_interval(rows: Rows, estimator: str, v: int) -> Vector:
    """Returns the mean error over ages 0 to v - 1."""
    errors = np.array([relative_error(rows, estimator, age) for age in ages_of(rows)])
    return np.array([_between(rows, series)[:v].mean() for series in errors.T])


def best_depth(rows: Rows, estimator: str) -> tuple[int, float]:
    """Returns how many of the last batches to pool for the least error, and that error.

    1 is a fresh batch alone. Over the seeds' means; the batches' biases are taken to point the same
    way.
    """
    ages = ages_of(rows)
    variance = [relative_variance(rows, estimator, age).mean() for age in ages]
    bias = [np.sqrt(max(relative_bias2(rows, estimator, age).mean(), 0)) for age in ages]
    return _least(_between(rows, np.array(variance)), _between(rows, np.array(bias)))


def foreseen_depth(rows: Rows) -> int:
    """Returns the same from chi-square alone: unbiased weights of variance v_0 (1 + chi^2)."""
    chi = [max(float(column(rows, age, "chi_square").mean()), 0.0) for age in ages_of(rows)]
    variance = _between(rows, 1 + np.array(chi))
    return _least(variance, 0 * variance)[0]


def _least(variance: Vector, bias: Vector) -> tuple[int, float]:
    depth = np.arange(1, len(variance) + 1)
    errors = np.cumsum(variance) / depth**2 + (np.cumsum(bias) / depth) ** 2
    best = int(np.argmin(errors))
    return best + 1, float(errors[best])


def _between(rows: Rows, values: Vector) -> Vector:
    """Returns a series over the ages that were measured, at every age."""
    ages = ages_of(rows)
    return np.interp(np.arange(max(ages) + 1), ages, values)


def _moment(rows: Rows, estimator: str, age: int, name: str) -> Vector:
    return np.array([_at(row, age)["gradient"][estimator][name] for row in rows], np.float64)


def _at(row: Row, age: int) -> Row:
    return next(one for one in row["ages"] if one["age"] == age)
