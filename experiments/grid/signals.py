"""Signals of a run against what becomes of it: when its score falls, and what told so before."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from experiments.grid.choose import SCORE, final
from experiments.grid.figures import AXES, Array, columns_of, curve
from experiments.grid.rows import Row

SIGNS = {"kl/pi_mu": 1, "ess": -1, "ratio/tail": 1, "chi_square": 1, "entropy": 1}
"""Signals, and whether trouble shows as more (1) or less (-1) of them."""
FALL = 0.7
"""A score has fallen where it is below so much of the best one before."""
FALSE_ALARMS = 0.1
"""Share of the runs that did not fall which a threshold may be crossed by."""
LATE = 0.9
"""Where the last tenth of a run begins."""
UPDATES = next(axis for axis in AXES if axis.name == "updates")


def ended_below_start(row: Row) -> bool:
    """Whether a run ended below where it began."""
    return final(row) < row["evaluations"][SCORE][0]


def fall(row: Row) -> float | None:
    """The update at whose evaluation the score was first below `FALL` of the best before."""
    updates, scores = curve(row, UPDATES, SCORE)
    best = np.maximum.accumulate(scores)
    below = np.flatnonzero(scores < FALL * best)
    return float(updates[below[0]]) if len(below) else None


def fell(row: Row) -> bool:
    """Whether the score fell at some evaluation."""
    return fall(row) is not None


def measured(row: Row, name: str) -> Array:
    """A signal's values on the way, those that were not measured left out."""
    known = [value for value in columns_of(row, name).get(name, []) if value is not None]
    return np.array(known, np.float64)


def stretch(row: Row, name: str, begin: float, end: float) -> float:
    """Mean of a signal over a stretch of a run, as shares of what was measured; NaN of nothing."""
    values = measured(row, name)
    first = min(round(len(values) * begin), max(len(values) - 1, 0))
    chosen = values[first : max(round(len(values) * end), first + 1)]
    return float(chosen.mean()) if len(chosen) else float("nan")


def late(row: Row, name: str) -> float:
    """Mean of a signal over the last tenth of a run's updates; NaN where it was not measured."""
    updates, values = curve(row, UPDATES, name)
    chosen = values[updates >= LATE * row["final"]["updates"]]
    return float(chosen.mean()) if len(chosen) else float("nan")


def ending(name: str, form: str) -> Callable[[Sequence[Row]], str]:
    """A signal's mean over the last tenth of the runs; a dash where it was not measured."""

    def told(rows: Sequence[Row]) -> str:
        values = [x for row in rows if np.isfinite(x := late(row, name))]
        return f"{np.mean(values):{form}}" if values else "–"

    return told


def fallen(rows: Sequence[Row]) -> str:
    """How many runs fell."""
    return f"{sum(map(fell, rows))}"


def rank(
    values: Sequence[float], bad: Sequence[bool], strata: Sequence[Hashable] | None = None
) -> tuple[float, int]:
    """Chance that a bad run's value is above a good one's, ties halved, and the number of pairs.

    The area under the ROC curve (Hanley and McNeil 1982): .5 says nothing, 1 sorts perfectly. With
    `strata` pairs are taken within a stratum alone, as van Elteren (1960) has it with equal weights
    of the pairs: what the strata themselves predict does not count. NaN without a pair.
    """
    ranked, fell = np.asarray(values, np.float64), np.asarray(bad, bool)
    names = [0] * len(ranked) if strata is None else [*strata]
    won, pairs = 0.0, 0
    for name in dict.fromkeys(names):
        inside = np.array([other == name for other in names])
        above = ranked[inside & fell][:, None]
        below = ranked[inside & ~fell][None, :]
        won += float((above > below).sum() + (above == below).sum() / 2)
        pairs += above.size * below.size
    return (won / pairs if pairs else float("nan")), pairs


def first_alarm(row: Row, name: str, sign: int, threshold: float) -> float | None:
    """The first update at which a signal was beyond a threshold."""
    updates, values = curve(row, UPDATES, name)
    beyond = np.flatnonzero(sign * values > threshold)
    return float(updates[beyond[0]]) if len(beyond) else None


def threshold(rows: Iterable[Row], name: str, sign: int) -> float:
    """What `FALSE_ALARMS` of the runs that did not fall ever went beyond; infinity of no run."""
    tops = [float((sign * values).max()) for row in rows if len(values := measured(row, name))]
    return float(np.quantile(tops, 1 - FALSE_ALARMS, method="higher")) if tops else float("inf")


def alarms(
    rows: Sequence[Row], signs: Mapping[str, int], fold: Callable[[Row], Hashable]
) -> list[dict[str, float | None]]:
    """For each run the first alarm of every signal, its threshold from the other folds' runs."""
    limits = {
        (out, name): threshold(
            (row for row in rows if fold(row) != out and not fell(row)), name, sign
        )
        for out in {fold(row) for row in rows}
        for name, sign in signs.items()
    }
    return [
        {
            name: first_alarm(row, name, sign, limits[fold(row), name])
            for name, sign in signs.items()
        }
        for row in rows
    ]
