"""Means, Pass@k and maj@k of held-out outcomes, with 95 % intervals clustered by problem.

Outcomes are `[prompts, samples]`. NaN marks a completion without a verdict: it is left out, never
counted as wrong. Samples of one prompt are not independent, so that the prompts are the unit.
Pass@k and maj@k are of n >= k samples a prompt, and unbiased.

The vote is counted exactly: drawing k of n samples without return is drawing each by itself with
chance k / n, given that k are drawn. The numbers of votes of different answers are then independent
binomials, which a recursion over the answers adds up; all terms are positive, so that nothing
cancels in floating point.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from math import comb, nan, sqrt
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
    """Returns Student's quantile at .975 with `freedom` >= 1 degrees of freedom.

    >>> round(student_quantile(4), 6)
    2.776445
    """
    from scipy.special import stdtrit  # a quarter of a second, for rewards of other sizes alone

    return float(stdtrit(freedom, 0.975))


def _score_bound(p: float, n: float, sign: int) -> float:
    center = p + Z95**2 / (2 * n)
    half = Z95 * sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return min(max((center + sign * half) / (1 + Z95**2 / n), 0.0), 1.0)


def pass_at_k(successes: NDArray[np.float32], k: int) -> Estimate:
    """Estimates the chance that one of k samples is right, from `[prompts, samples]` of 0 or 1.

    Mean over prompts of 1 - C(n - c, k) / C(n, k), with c right of n samples: unbiased for every
    k <= n (Chen et al. 2021, arXiv:2107.03374). The interval is that of `clustered_interval`; at
    k = n each prompt has one outcome, solved or not, and it is Wilson's.

    Outcomes that are NaN, without a verdict, are not among the n; prompts with fewer than k others
    are left out, and the estimate's `n` does not count them.

    Raises:
      ValueError: k is not among 1 to n, no prompt has k verdicts, or an outcome is neither 0
        nor 1.
    """
    successes = _enough(successes, k, "Pass")
    between = successes[(successes != 0) & (successes != 1) & ~np.isnan(successes)]
    if between.size:
        raise ValueError(
            f"Pass@{k} needs rewards of 0 or 1, and one is {between[0]}: judge held-out answers "
            "right or wrong, or leave Pass@k out with --evaluation.samples 1"
        )
    drawn = np.count_nonzero(~np.isnan(successes), axis=1)
    right = np.count_nonzero(successes == 1, axis=1)
    pairs = zip(drawn.tolist(), right.tolist(), strict=True)
    values = np.array([1 - comb(n - c, k) / comb(n, k) for n, c in pairs])
    return proportion(values, float(drawn.mean()) / k)


def majority_at_k(
    successes: NDArray[np.float32], answers: Sequence[Sequence[str | None]], k: int
) -> Estimate:
    """Estimates the chance that the answer of most of k samples is right (maj@k, arXiv:2203.11171).

    The exact mean over all subsets of k of a prompt's n samples, hence unbiased for every k <= n.
    Answers are one if their texts are. Among those with equally many votes the choice is fair: m
    tied answers of which r are right count r / m. A sample without an answer does not vote; where
    none votes, nothing is right. Where samples of one answer got different verdicts, it counts with
    their mean.

    Args:
      successes: `[prompts, samples]` outcomes in [0, 1]; NaN leaves a sample out.
      answers: of the same shape, the texts; None for a sample without an answer.
      k: the samples that vote.

    Raises:
      ValueError: k is not among 1 to n, no prompt has k verdicts, the shapes differ, or an
        outcome lies outside [0, 1].
    """
    if [len(row) for row in answers] != [successes.shape[1]] * len(successes):
        raise ValueError(f"maj@{k}: the answers are not {successes.shape}, as the outcomes are")
    if ((successes < 0) | (successes > 1)).any():
        raise ValueError(
            f"maj@{k} needs rewards from 0 to 1: judge held-out answers right or wrong"
        )
    _enough(successes, k, "maj")
    values, drawn = [], []
    for outcomes, texts in zip(successes, answers, strict=True):
        votes = [(a, float(y)) for a, y in zip(texts, outcomes, strict=True) if not np.isnan(y)]
        if len(votes) >= k:
            values.append(_majority(votes, k))
            drawn.append(len(votes))
    return proportion(np.array(values), float(np.mean(drawn)) / k)


def _majority(votes: Sequence[tuple[str | None, float]], k: int) -> float:
    verdicts: dict[str, list[float]] = defaultdict(list)
    for answer, verdict in votes:
        if answer is not None:
            verdicts[answer].append(verdict)
    sizes = Counter({answer: len(outcomes) for answer, outcomes in verdicts.items()})
    silent = len(votes) - sizes.total()
    chance = 0.0
    for answer, outcomes in verdicts.items():
        if any(outcomes):
            others = tuple(sorted(size for other, size in sizes.items() if other != answer))
            share = sum(outcomes) / len(outcomes)
            chance += share * winning_chance(len(outcomes), others, silent, k)
    return min(chance, 1.0)


def _enough(outcomes: NDArray[np.float32], k: int, name: str) -> NDArray[np.float32]:
    prompt_means(outcomes)  # refuses outcomes without any verdict
    n = outcomes.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"{name}@{k} of {n} samples a prompt: give k from 1 to {n}")
    judged = outcomes[np.count_nonzero(~np.isnan(outcomes), axis=1) >= k]
    if not len(judged):
        raise ValueError(f"{name}@{k}: no prompt has {k} samples with a verdict; give a smaller k")
    return judged


@lru_cache(maxsize=1 << 14)
def winning_chance(votes: int, others: tuple[int, ...], silent: int, k: int) -> float:
    """Returns the chance that an answer has the most votes among k samples, ties split evenly.

    Args:
      votes: samples that gave this answer.
      others: samples that gave each other answer.
      silent: samples without an answer, which do not vote.
      k: how many of all these are drawn.
    """
    total = votes + sum(others) + silent
    share = k / total
    chances = _binomial(votes, share)
    wins = 0.0
    for drawn in range(1, min(votes, k) + 1):
        rivals = _rivals(others, silent, k - drawn, drawn, share)
        wins += chances[drawn] * float(rivals @ (1 / np.arange(1, len(rivals) + 1)))
    return wins / float(_binomial(total, share)[k])


def _rivals(
    others: tuple[int, ...], silent: int, rest: int, votes: int, share: float
) -> NDArray[np.float64]:
    """Returns the chance that `rest` others are drawn, none with over `votes`, by how many tie."""
    state = np.zeros((rest + 1, rest // votes + 1))  # [drawn so far, answers that tie]
    state[0, 0] = 1.0
    for size in others:
        chances = _binomial(size, share)
        after = np.zeros_like(state)
        for drawn in range(min(size, votes - 1, rest) + 1):
            after[drawn:] += chances[drawn] * state[: rest + 1 - drawn]
        if min(size, rest) >= votes:
            after[votes:, 1:] += chances[votes] * state[: rest + 1 - votes, :-1]
        state = after
    quiet = _binomial(silent, share)
    drawn = np.arange(min(silent, rest) + 1)
    return quiet[drawn] @ state[rest - drawn]


@lru_cache(maxsize=1 << 12)
def _binomial(size: int, share: float) -> NDArray[np.float64]:
    chances = np.ones(1)
    for _ in range(size):
        chances = np.convolve(chances, (1 - share, share))
    return chances
