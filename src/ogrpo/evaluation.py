"""Pass@1 with its uncertainty: what a held-out split says, and how sure it is."""

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
    n = successes.size
    if n == 0:
        raise ValueError("no held-out prompts to evaluate on: raise --evaluation.prompts")
    p = float(successes.mean(dtype=np.float64))
    center = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 * np.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2)) / (1 + Z95**2 / n)
    return Estimate(p, float(center - half), float(center + half), n)


def clustered_interval(successes: NDArray[np.float32]) -> Estimate:
    """Mean of `[prompts, samples]` outcomes; samples of one prompt are not independent.

    The standard error is that of the per-prompt means, so that more samples of the same prompts
    do not pretend to be more prompts. With one sample per prompt it is Wilson's interval.
    """
    if successes.shape[1] == 1 or successes.shape[0] < 2:
        return wilson_interval(successes[:, 0])
    means = successes.mean(axis=1, dtype=np.float64)
    half = Z95 * means.std(ddof=1) / np.sqrt(means.size)
    mean = float(means.mean())
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half), means.size)
