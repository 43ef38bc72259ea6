"""Pass@1 and Pass@k with their uncertainty: what a held-out split says, and how sure it is."""

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054


class Estimate(NamedTuple):
    """A mean with a 95 % confidence interval over `n` prompts."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson_interval(successes: NDArray[np.float32]) -> Estimate:
    """Wilson's score interval for a proportion; one 0/1 outcome per prompt (Wilson 1927)."""
    n = _count_prompts(successes)
    p = float(successes.mean(dtype=np.float64))
    return Estimate(p, *_score_bounds(p, n), n)


def clustered_interval(successes: NDArray[np.float32]) -> Estimate:
    """Mean of `[prompts, samples]` outcomes; samples of one prompt are not independent.

    Wilson's interval at the effective number of independent outcomes, p (1 - p) / variance of p,
    where the variance is that of the per-prompt means over their number: more samples of the same
    prompts do not pretend to be more prompts. With one sample per prompt it is Wilson's interval.
    """
    _count_prompts(successes)
    return _clustered(successes.mean(axis=1, dtype=np.float64), successes.shape[1])


def pass_at_k(successes: NDArray[np.float32], k: int) -> Estimate:
    """Chance that at least one of k samples is right, from `[prompts, samples]` outcomes 0 or 1.

    Mean over prompts of 1 - C(n - c, k) / C(n, k), with c right of n samples: unbiased for every
    k <= n (Chen et al. 2021, arXiv:2107.03374). The interval is that of `clustered_interval`; at
    k = n each prompt has one outcome, solved or not, and it is Wilson's.

    Raises:
        ValueError: k is not among 1 to n, or an outcome is neither 0 nor 1.
    """
    _count_prompts(successes)
    n = successes.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"Pass@{k} of {n} samples a prompt: give k from 1 to {n}")
    between = successes[(successes != 0) & (successes != 1)]
    if between.size:
        raise ValueError(
            f"Pass@{k} needs rewards of 0 or 1, and one is {between[0]}: judge held-out answers "
            "right or wrong, or leave Pass@k out with --evaluation.samples 1"
        )
    solved = np.array([1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)])
    counts = successes.sum(axis=1, dtype=np.float64).astype(np.int64)
    return _clustered(solved[counts], n / k)


def _clustered(values: NDArray[np.float64], most: float) -> Estimate:
    # `values` of prompts lie in [0, 1]; each is worth 1 to `most` independent outcomes. The spread
    # is taken as if one more prompt had been seen whose outcomes all agree: without it, few prompts
    # that happen to be alike would pass for certainty.
    n, p = values.size, float(values.mean())
    one = p * (1 - p)
    variance = (float(np.square(values - p).sum()) + one) / n / n
    effective = min(max(one / variance, n), n * most) if one > 0 else n
    return Estimate(p, *_score_bounds(p, effective), n)


def _count_prompts(outcomes: NDArray[np.float32]) -> int:
    if len(outcomes) == 0:
        raise ValueError("no held-out prompts to evaluate on: raise --evaluation.prompts")
    return len(outcomes)


def _score_bounds(p: float, n: float) -> tuple[float, float]:
    center = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * np.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return float(center - half), float(center + half)
