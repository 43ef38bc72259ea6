"""Signals of a run against its score: when the score falls, and which signal warned before."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from experiments.grid.figures import UPDATES, Array, columns_of, curve
from experiments.grid.rows import SCORE, Row, Rows, final

SIGNS = {"kl/pi_mu": 1, "ess": -1, "ratio/tail": 1, "chi_square": 1, "entropy": 1}
"""Signals, and whether trouble shows as more (1) or less (-1) of them."""
FALL = 0.7
"""A score has fallen where it is below so much of the best one before."""
FALSE_ALARMS = 0.1
"""Share of the runs that did not fall which a threshold may be crossed by."""
LATE = 0.9
"""Share of a run's updates after which its last tenth begins."""


def ended_below_start(row: Row) -> bool:
    """Whether a run ended below its first score."""
    return final(row) < row["evaluations"][SCORE][0]


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


def stretch(row: Row, name: str, begin: float, end: float) -> float:
    """Returns the mean of a signal over a stretch of a run; NaN of nothing.

    Args:
      row: of the run.
      name: of the signal.
      begin: of the stretch, as a share of what was measured.
      end: of the stretch.
    """
    values = measured(row, name)
    first = min(round(len(values) * begin), max(len(values) - 1, 0))
    part = values[first : max(round(len(values) * end), first + 1)]
    return float(part.mean()) if len(part) else float("nan")


def early(row: Row, name: str, part: float, sign: int) -> float:
    """Returns a signal's mean over the first `part`; the worst value if it was never finite."""
    return float(np.nan_to_num(stretch(row, name, 0.0, part), nan=sign * np.inf))


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


def first_alarm(row: Row, name: str, sign: int, threshold: float) -> float | None:
    """Returns the first update at which a signal was beyond a threshold."""
    updates, values = curve(row, UPDATES, name)
    beyond = np.flatnonzero(sign * values > threshold)
    return float(updates[beyond[0]]) if len(beyond) else None


def threshold(rows: Iterable[Row], name: str, sign: int) -> float:
    """Returns what `FALSE_ALARMS` of the runs that did not fall went beyond; infinity of no run."""
    tops = [float((sign * values).max()) for row in rows if len(values := measured(row, name))]
    return float(np.quantile(tops, 1 - FALSE_ALARMS, method="higher")) if tops else float("inf")


def alarms(
    rows: Rows, signs: Mapping[str, int], fold: Callable[[Row], Hashable]
) -> list[dict[str, float | None]]:
    """Returns each run's first alarm of every signal, thresholds being of the other folds' runs."""
    limits: dict[tuple[Hashable, str], float] = {}
    for out in {fold(row) for row in rows}:
        others = [row for row in rows if fold(row) != out and not fell(row)]
        limits |= {(out, name): threshold(others, name, sign) for name, sign in signs.items()}
    return [
        {
            name: first_alarm(row, name, sign, limits[fold(row), name])
            for name, sign in signs.items()
        }
        for row in rows
    ]
