"""Errors of gradients by age, from rows: what is proportional to a fresh batch's variance."""

import numpy as np
from numpy.typing import NDArray

from experiments.grid.rows import Row, Rows
from experiments.variance.along import BATCH

Vector = NDArray[np.float64]


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


def _moment(rows: Rows, estimator: str, age: int, name: str) -> Vector:
    return np.array([_at(row, age)["gradient"][estimator][name] for row in rows], np.float64)


def _at(row: Row, age: int) -> Row:
    return next(one for one in row["ages"] if one["age"] == age)
