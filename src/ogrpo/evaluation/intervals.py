"""Means of held-out outcomes with 95 % intervals that are clustered by problem; numpy only.

Outcomes are `[prompts, samples]`. NaN marks a completion without a verdict: it is left out, never
counted as wrong. Samples of one prompt are not independent, so that the prompts are the unit.
"""

from math import cos, nan, pi, sin, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054
"""The standard normal's quantile at .975."""

EVEN_ODDS = 0.25
"""The variance of an outcome that is right half the time: the largest that there is."""


class Estimate(NamedTuple):
    """A mean with a 95 % confidence interval over `n` prompts."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def clustered_interval(successes: NDArray[np.float32]) -> Estimate:
    """Estimates the mean of `[prompts, samples]` outcomes in [0, 1], prompts weighing alike.

    Wilson's score interval at the effective number of independent outcomes, which `proportion`
    takes from the spread between prompts: more samples of the same prompts do not pretend to be
    more prompts. With one sample per prompt it is Wilson's for a proportion.

    The continuity correction (Wilson 1927; Newcombe 1998, method 4) keeps it from covering too
    little near 0 and 1: without it a true mean of .99 lies in .843 of the intervals of 17 prompts.

    Raises:
        ValueError: there is no verdict at all, or an outcome lies outside [0, 1].
    """
    outside = successes[(successes < 0) | (successes > 1)]
    if outside.size:
        raise ValueError(
            f"an outcome is {outside[0]}; a proportion has outcomes from 0 to 1: "
            "take mean_interval for rewards of other sizes"
        )
    if len(successes) == 0:
        raise ValueError("no held-out prompts to evaluate on: raise --evaluation.prompts")
    means, drawn = prompt_means(successes)
    return proportion(means, float(drawn.mean()))


def mean_interval(values: NDArray[np.floating]) -> Estimate:
    """Estimates the mean of `[prompts, samples]` numbers by Student's t over the prompts' means.

    One prompt alone does not tell how far prompts differ: its bounds are NaN.

    Raises:
        ValueError: there is no number at all, or one is infinite.
    """
    if np.isinf(values).any():
        raise ValueError("a mean needs finite numbers, and one is infinite")
    means, _ = prompt_means(values)
    n, mean = means.size, float(means.mean())
    if n == 1:
        return Estimate(mean, nan, nan, 1)
    half = student_quantile(n - 1) * float(means.std(ddof=1)) / sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def prompt_means(values: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns mean and number of each prompt's values but NaN, of the prompts that have any.

    Raises:
        ValueError: no prompt has any.
    """
    drawn = np.count_nonzero(~np.isnan(values), axis=1)
    if not drawn.any():
        raise ValueError(
            "no held-out prompts to evaluate on: raise --evaluation.prompts, or look why no answer "
            "has a verdict"
        )
    if drawn.min() == values.shape[1]:
        return values.mean(axis=1, dtype=np.float64), drawn
    kept = values[drawn > 0]
    return np.asarray(np.nanmean(kept, axis=1, dtype=np.float64)), drawn[drawn > 0]


def proportion(values: NDArray[np.float64], most: float) -> Estimate:
    """Estimates the mean of prompts' values in [0, 1], each worth 1 to `most` independent outcomes.

    The effective number is n / d. The design effect d compares the spread between prompts with that
    of outcomes that are right or wrong (p (1 - p), the largest at this mean p):

        d = (sum_i (value_i - p)^2 + 1/4) / (n p (1 - p) + 1/4),    1 / most <= d <= 1.

    The quarters are one more prompt of even odds whose samples all agree. Where n p (1 - p) is
    small, few prompts differ from the others and cannot tell d: it is 1 then, one outcome a prompt.
    """
    n, p = values.size, float(values.mean())
    within = p * (1 - p)
    spread = (float(np.square(values - p).sum()) + EVEN_ODDS) / (n * within + EVEN_ODDS)
    effective = n / min(max(spread, 1 / most), 1.0) if within > 0 else n
    low = _score_bound(max(p - 0.5 / effective, 0.0), effective, -1) if p > 0 else 0.0
    high = _score_bound(min(p + 0.5 / effective, 1.0), effective, 1) if p < 1 else 1.0
    return Estimate(p, low, high, n)


def student_quantile(freedom: int) -> float:
    """Returns Student's quantile at .975 with `freedom` >= 1 degrees of freedom, by bisection.

    The distribution function of whole degrees is a finite sum (Abramowitz and Stegun 26.7.3-4).

    >>> round(student_quantile(4), 6)
    2.776445
    """
    low, high = 0.0, pi / 2  # the angle theta, tan(theta) = t / sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central(middle, freedom) < 0.95 else (low, middle)
    return sqrt(freedom) * sin(low) / cos(low)


def _central(theta: float, freedom: int) -> float:
    # P(|T| <= t): terms cos^m (product of (j - 1) / j) of every second power m below `freedom`.
    odd = freedom % 2
    term, total = (cos(theta), 0.0) if odd else (1.0, 0.0)
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cos(theta) ** 2 * (power + 1) / (power + 2)
    return 2 / pi * (theta + sin(theta) * total) if odd else sin(theta) * total


def _score_bound(p: float, n: float, sign: int) -> float:
    center = p + Z95**2 / (2 * n)
    half = Z95 * sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return min(max((center + sign * half) / (1 + Z95**2 / n), 0.0), 1.0)
