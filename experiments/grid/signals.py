"""Signals of a run against its score: when the score falls, and which signal warned before."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from experiments.grid.figures import UPDATES, Array, columns_of, curve
from experiments.grid.rows import SCORE, Row, Rows

FALL = 0.7
"""A score has fallen where it is below so much of the best one before."""
FALSE_ALARMS = 0.1
"""Share of the runs that did not fall which may cross a limit."""
LATE = 0.9
"""Share of a run's updates after which its last tenth begins."""


def fall(row: Row) -> float | None:
    """Returns the update at which the score was first below `FALL` of the best before, or None."""
    updates, scores = curve(row, UPDATES, SCORE)
    below = np.flatnonzero(scores < FALL * np.maximum.accumulate(scores))
    return float(updates[below[0]]) if len(below) else None


def fell(row: Row) -> bool:
    """Whether the score fell at some evaluation."""
    return fall(row) is not None


def fallen(rows: Rows) -> str:
    """Returns how many runs fell."""
    return f"{sum(map(fell, rows))}"


def measured(row: Row, name: str) -> Array:
    """Returns a signal's values on the way, those that were not measured left out."""
    known = [value for value in columns_of(row, name).get(name, []) if value is not None]
    return np.array(known, np.float64)


def early(row: Row, name: str, part: float, sign: int) -> float:
    """Returns a signal's mean over the first `part`; the worst value if it was never finite."""
    values = measured(row, name)
    first = values[: max(round(len(values) * part), 1)]
    mean = float(first.mean()) if len(first) else float("nan")
    return float(np.nan_to_num(mean, nan=sign * np.inf))


def late(row: Row, name: str) -> float:
    """Returns the mean of a signal over the last tenth of the updates; NaN if never measured."""
    updates, values = curve(row, UPDATES, name)
    last = values[updates >= LATE * row["final"]["updates"]]
    return float(last.mean()) if len(last) else float("nan")


def ending(name: str, form: str) -> Callable[[Rows], str]:
    """Returns a column: a signal's mean over the last tenth of the runs, or a dash."""

    def column(rows: Rows) -> str:
        values = [x for row in rows if np.isfinite(x := late(row, name))]
        return f"{np.mean(values):{form}}" if values else "–"

    return column


def rank(
    values: Sequence[float], bad: Sequence[bool], strata: Sequence[Hashable] | None = None
) -> tuple[float, int]:
    """Chance that a bad run's value is above a good one's, ties halved, and the number of pairs.

    The area under the ROC curve (Hanley and McNeil 1982): .5 says nothing, 1 sorts perfectly. With
    `strata` pairs are taken within a stratum alone, as van Elteren (1960) has it with equal weights
    of the pairs: what the strata themselves predict does not count. NaN without a pair.
    """
    ranked, is_bad = np.asarray(values, np.float64), np.asarray(bad, bool)
    names = [0] * len(ranked) if strata is None else [*strata]
    won, pairs = 0.0, 0
    for name in dict.fromkeys(names):
        inside = np.array([other == name for other in names])
        above = ranked[inside & is_bad][:, None]
        below = ranked[inside & ~is_bad][None, :]
        won += float((above > below).sum() + (above == below).sum() / 2)
        pairs += above.size * below.size
    return (won / pairs if pairs else float("nan")), pairs


def alarms(
    rows: Rows, signs: Mapping[str, int], fold: Callable[[Row], Hashable]
) -> list[dict[str, float | None]]:
    """Returns each run's first alarm of every signal: the update at which it was beyond its limit.

    A limit is what `FALSE_ALARMS` of the other folds' runs that did not fall went beyond, infinity
    where there is none.
    """

    def limit(out: Hashable, name: str, sign: int) -> float:
        others = [measured(row, name) for row in rows if fold(row) != out and not fell(row)]
        tops = [float((sign * values).max()) for values in others if len(values)]
        return float(np.quantile(tops, 1 - FALSE_ALARMS, method="higher")) if tops else np.inf

    def first(row: Row, name: str, sign: int) -> float | None:
        updates, values = curve(row, UPDATES, name)
        beyond = np.flatnonzero(sign * values > limits[fold(row), name])
        return float(updates[beyond[0]]) if len(beyond) else None

    folds = {fold(row) for row in rows}
    limits = {(out, name): limit(out, name, signs[name]) for out in folds for name in signs}
    return [{name: first(row, name, sign) for name, sign in signs.items()} for row in rows]
