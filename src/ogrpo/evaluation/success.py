"""Which reward says that an answer is right: the one that is marked, or the only one of 0 and 1."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation.intervals import Estimate, clustered_interval, mean_interval

Values = Mapping[str, NDArray[np.floating]]
"""What each reward gave, by its name; NaN where it left no verdict."""


def is_zero_or_one(values: NDArray[np.floating]) -> bool:
    """Return whether there are verdicts and each is 0 or 1."""
    verdicts = values[~np.isnan(values)]
    return bool(verdicts.size) and bool(((verdicts == 0) | (verdicts == 1)).all())


def candidates(values: Values) -> list[str]:
    """Return the names of the rewards that are 0 or 1."""
    return [name for name, each in values.items() if is_zero_or_one(each)]


def success_reward(values: Values, marked: str | None = None) -> str | None:
    """Return the name of the reward that says right (1) or wrong (0); None if none does.

    Pass@k, maj@k and Wilson's intervals are of its values alone; all else are means.

    >>> correct, length = np.array([[1.0, 0.0]]), np.array([[0.3, 0.8]])
    >>> success_reward({"correct": correct, "length": length})
    'correct'
    >>> success_reward({"correct": correct, "format": correct}) is None
    True
    >>> success_reward({"correct": correct, "format": correct}, "format")
    'format'

    Args:
        values: of all rewards on the held-out answers, of any shape.
        marked: the reward that the task or the user names; without it the only one that is 0 or 1.

    Raises:
        ValueError: there is no reward `marked`, or it gave something other than 0 and 1.
    """
    if marked is None:
        names = candidates(values)
        return names[0] if len(names) == 1 else None
    if marked not in values:
        raise ValueError(f"there is no reward {marked!r}; the answers were judged by {[*values]}")
    verdicts = values[marked][~np.isnan(values[marked])]
    between = verdicts[(verdicts != 0) & (verdicts != 1)]
    if between.size:
        raise ValueError(
            f"reward {marked!r} is to say right or wrong, and it gave {between[0]:g}: name one that"
            " is 0 or 1"
        )
    return marked if verdicts.size else None


def estimate(values: NDArray[np.floating], *, success: bool) -> Estimate:
    """Return the mean of `[N, k]` values and its interval: of successes a share's, else a mean's.

    Raises:
        ValueError: there is no verdict at all, or a success lies outside [0, 1].
    """
    return clustered_interval(values.astype(np.float32)) if success else mean_interval(values)
