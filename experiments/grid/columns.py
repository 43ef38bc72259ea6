"""Columns of tables: a heading, and what it says of one method's rows over its seeds."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from experiments.grid.rows import SCORE, Rows, final, where
from experiments.grid.signals import FALL, ending, fallen
from experiments.grid.verdicts import Difference, Verdict, difference, mean_and_interval

Value = str | Difference | Verdict
"""Content of a table's cell until the study's differences are corrected together."""


class Column(NamedTuple):
    """A heading, and the value for the rows of one method over its seeds."""

    head: str
    of: Callable[[Rows], Value]
    note: str = ""
    """A sentence for the page."""


def plus_minus(values: ArrayLike, form: str = ".3f") -> str:
    """Returns mean ± half the width of its 95 % t-interval."""
    mean, half = mean_and_interval(values)
    if not np.isfinite(mean):
        return "–"
    return f"{mean:{form}}" + ("" if np.isnan(half) else f" ± {half:{form.lstrip('+')}}")


def score(name: str = SCORE) -> Callable[[Rows], str]:
    """Returns a column: the final value of a score over seeds."""
    return lambda rows: plus_minus([final(row, name) for row in rows])


def average(name: str) -> Callable[[Rows], str]:
    """Returns a column: the final value of a counter, mean over seeds."""
    return lambda rows: f"{np.mean([final(row, name) for row in rows]):,.0f}"


def over_run(name: str, form: str = ".3f") -> Callable[[Rows], str]:
    """Returns a column: the mean of a signal over a run's steps, over seeds."""

    def column(rows: Rows) -> str:
        known = [[x for x in row["steps"].get(name, []) if x is not None] for row in rows]
        means = [float(np.mean(values)) for values in known if values]
        return plus_minus(means, form) if means else "–"

    return column


def against(others: Rows) -> Callable[[Rows], Value]:
    """Returns a column: the difference to other rows, seed by seed; these are the reference."""
    keys = {row["key"] for row in others}

    def column(rows: Rows) -> Value:
        if {row["key"] for row in rows} == keys:
            return "reference"
        return difference(rows, others)

    return column


def against_at(
    rows: Rows, label: str | Callable[[str], str], coordinate: str
) -> Callable[[Rows], Value]:
    """Returns a column: the difference to a method at the same value of the coordinate.

    Args:
      rows: those that are reported.
      label: of the method, or a function that says which method another is held against.
      coordinate: of the study's plane.
    """

    def column(trials: Rows) -> Value:
        other = label if isinstance(label, str) else label(trials[0]["label"])
        value = trials[0]["coordinates"][coordinate]
        return against(where(where(rows, label=other), **{coordinate: value}))(trials)

    return column


SAMPLED, GREEDY = PASS_AT_1 = (
    Column("Pass@1, sampled", score()),
    Column("Pass@1, greedy", score("pass@1/greedy")),
)
FINAL = Column("final Pass@1", score())
UPDATES = Column("updates", average("updates"))
SPENT = (Column("completions", average("completions")), UPDATES)
LAST = "Signals of the policy (KL, entropy, tokens) are means over the last tenth of a run."
KL = Column("KL(π‖μ)", ending("kl/pi_mu", ".2g"), LAST)
ENTROPY = Column("entropy", ending("entropy", ".3f"), LAST)
POLICY = (KL, ENTROPY)
LENGTH = Column("tokens a completion", ending("tokens/completion", ".1f"), LAST)
WHOLE = "The norm of the gradient is a mean over a whole run."
GRADIENT = Column("norm of the gradient", over_run("grad_norm"), WHOLE)
FALLEN = f"Fell: seeds whose Pass@1 was at some evaluation below {FALL:g} of the best before."
FELL = Column("fell", fallen, FALLEN)


def notes(columns: Iterable[Column]) -> str:
    """Returns what the columns say of themselves."""
    return " ".join(dict.fromkeys(column.note for column in columns if column.note))
