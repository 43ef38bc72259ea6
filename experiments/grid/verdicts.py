"""Verdicts on claims: 95 % t-intervals, Holm's correction, a smallest effect of interest.

A difference is of two methods, seed by seed. All differences of a study's page are one family: the
p-values of their paired t-tests are adjusted by Holm (1979), and one that stays below .05 survives.
With the difference signed as the claim has it, its interval [low, high] and delta = `SMALLEST`:

  claim      reproduced                       not seen      contradicted
  above      survives, mean >= delta          high < delta  survives, mean <= -delta
  level      -delta < low and high < delta                  survives, |mean| >= delta
  not below  low > -delta                                   survives, mean <= -delta

and undecided otherwise; `below` is `above` with the two methods exchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr

from experiments.grid.rows import SCORE, Row, by_seed, reported, where
from ogrpo.evaluation.estimates import student_quantile

SMALLEST = 0.05
"""Pass@1: the smallest effect of interest; docs/results.md says how often five seeds show it."""
LEVEL = 0.05
WORDS = ("reproduced", "not seen", "contradicted", "undecided")

Relation = Literal["above", "below", "level", "not below"]
Pick = Mapping[str, Any]
"""A method by its label and coordinates, as `where` takes them."""


def mean_and_interval(values: ArrayLike) -> tuple[float, float]:
    """Returns the mean over seeds and half the width of its 95 % t-interval, NaN of one seed."""
    array = np.asarray(values, np.float64)
    freedom = len(array) - 1
    half = student_quantile(freedom) * array.std(ddof=1) / sqrt(len(array)) if freedom else nan
    return float(array.mean()), float(half)


@dataclass(frozen=True)
class Difference:
    """Lead of a method over another, seed by seed."""

    values: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float, float]:
        """The mean, and the ends of its 95 % t-interval."""
        mean, half = mean_and_interval(self.values) if self.values else (nan, nan)
        return mean, mean - half, mean + half

    @property
    def p_value(self) -> float:
        """Two-sided, of the paired t-test that the mean is zero; 1 of fewer than two seeds."""
        mean, low, high = self.interval
        if isnan(low):
            return 1.0
        if mean in (low, high):  # the same but for rounding
            return 0.0 if mean else 1.0
        freedom = len(self.values) - 1
        t = mean / (high - mean) * student_quantile(freedom)
        return float(2 * stdtr(freedom, -abs(t)))

    def text(self, *, survives: bool = False) -> str:
        """Mean ± half the width of the interval, and a star where it survives the correction."""
        mean, _, high = self.interval
        if isnan(mean):
            return "–"
        width = "" if isnan(high) else f" ± {high - mean:.3f}"
        return f"{mean:+.3f}{width}" + " *" * survives


def difference(rows: Sequence[Row], others: Sequence[Row], name: str = SCORE) -> Difference:
    """Returns the differences of a final score over the seeds that both have, in their order.

    Those of the same runs are equal, whatever the order of rows, and count once in a family.
    """
    mine, theirs = by_seed(rows, name), by_seed(others, name)
    return Difference(tuple(mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs)))


@dataclass(frozen=True)
class Verdict:
    """A difference as evidence for a claim, once the whole family is known."""

    difference: Difference
    relation: Relation

    def word(self, *, survives: bool) -> str:
        """One of `WORDS`, by the rule of this module."""
        mean, low, high = self.difference.interval
        if self.relation == "below":
            mean, low, high = -mean, -high, -low
        if self.relation == "level":
            holds = low > -SMALLEST and high < SMALLEST
            refuted = survives and abs(mean) >= SMALLEST
        else:
            holds = low > -SMALLEST if self.relation == "not below" else mean >= SMALLEST
            holds = holds and (survives or self.relation == "not below")
            refuted = survives and mean <= -SMALLEST
        excluded = self.relation in ("above", "below") and high < SMALLEST
        verdicts = {"reproduced": holds, "contradicted": refuted, "not seen": excluded}
        return next((word for word, is_so in verdicts.items() if is_so), "undecided")


@dataclass(frozen=True)
class Claim:
    """A sentence that two methods' rows decide, or a difference that a study computes itself."""

    text: str
    one: Pick
    relation: Relation
    other: Pick
    of: Callable[[Sequence[Row]], Difference] | None = None


def claim(
    text: str,
    one: str,
    relation: Relation,
    other: str,
    at: Pick | None = None,
    other_at: Pick | None = None,
) -> Claim:
    """A claim of two methods by their labels, at these coordinates; the other's may differ."""
    place = at or {}
    beside = place if other_at is None else other_at
    return Claim(text, {"label": one, **place}, relation, {"label": other, **beside})


def of_claim(claim: Claim, rows: Sequence[Row]) -> Difference:
    """Returns the difference that decides a claim; one of no seeds where a method was not run."""
    if claim.of is not None:
        return claim.of(rows)
    final_rows = reported(rows)
    return difference(where(final_rows, **claim.one), where(final_rows, **claim.other))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for all of them together (Holm 1979)."""
    order = np.argsort(p_values)
    scaled = np.asarray(p_values, np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def surviving(family: Sequence[Difference]) -> set[Difference]:
    """Returns the differences that survive; equal ones count once, those of equal runs never."""
    distinct = [*dict.fromkeys(one for one in family if any(one.values))]
    adjusted = holm([one.p_value for one in distinct])
    return {one for one, p in zip(distinct, adjusted, strict=True) if p < LEVEL}
