"""Methods crossed with the values of one coordinate: scores, differences, curves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.grid.choose import of_labels, reported
from experiments.grid.figures import all_axes, small_multiples
from experiments.grid.rows import Row, where
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Column, Table, Value, against, score, summary

Heads = Mapping[int, str]
"""Values of the coordinate, each with its heading."""
INTERVALS = (
    "Seeds and problems are ones that nothing was chosen on; mean and 95 % t-interval over seeds."
)


def at(told: Iterable[Row], coordinate: str, value: float | str, **is_: Any) -> list[Row]:
    """The rows at a value of the coordinate whose other fields have these values."""
    return where(told, lambda row: row["coordinates"][coordinate] == value, **is_)


def scores(
    told: Sequence[Row], labels: Sequence[str], coordinate: str, heads: Heads, *, name: str
) -> Table:
    """Final Pass@1 of each method at each value; a dash where one was not run."""

    def ending(label: str, value: int) -> str:
        trials = at(told, coordinate, value, label=label)
        return score()(trials) if trials else "–"

    known = [label for label in labels if where(told, label=label)]
    lines = [[label, *(ending(label, value) for value in heads)] for label in known]
    return Table(name, ("method", *heads.values()), lines)


def against_at(
    told: Sequence[Row], label: str, coordinate: str
) -> Callable[[Sequence[Row]], Value]:
    """The difference to a method at the same value of the coordinate, seed by seed."""

    def difference(trials: Sequence[Row]) -> Value:
        value = trials[0]["coordinates"][coordinate]
        return against(at(told, coordinate, value, label=label))(trials)

    return difference


def by_value(coordinate: str, labels: Sequence[str]) -> Callable[[Sequence[Row]], Any]:
    """Orders the lines of a summary by the coordinate, then as the methods are listed."""

    def key(trials: Sequence[Row]) -> Any:
        label = trials[0]["label"]
        return trials[0]["coordinates"][coordinate], (*labels, label).index(label)

    return key


def curves_at(
    told: Sequence[Row],
    labels: Sequence[str],
    signals: Sequence[str],
    coordinate: str,
    heads: Heads,
) -> list[Section]:
    """The curves of these methods at each value where any was run."""
    return [
        curves(here, labels, signals, head.replace(" ", "-"), f"Curves, {head}")
        for value, head in heads.items()
        if (here := at(told, coordinate, value))
    ]


def curves(
    rows: Sequence[Row], labels: Sequence[str], signals: Sequence[str], slug: str, heading: str
) -> Section:
    """Signals of these methods against updates, and their score against all axes."""
    here = [{**row, "coordinates": {}} for row in of_labels(rows, labels)]
    draw = partial(small_multiples, here, signals, axis="updates")
    axes = Picture(f"{slug}-axes", partial(all_axes, here))
    text = "Seeds thin, a band of 95 %."
    return Section(heading, text, (), [Picture(f"{slug}-signals", draw), axes])


@dataclass(frozen=True)
class Crossed:
    """What a study of methods crossed with one coordinate reports: methods x values x columns."""

    coordinate: str
    heads: Heads
    labels: Sequence[str]
    columns: Sequence[Column]
    """Of the whole table, after method and setting."""
    signals: Sequence[str]
    """That curves are drawn of, at each value."""
    ending: str
    """Says what the table of final scores is of."""
    whole: str
    """Says what the columns are."""

    def tables(self, rows: Sequence[Row]) -> list[Section]:
        """Where each method ends at each value, then the whole table."""
        final = scores(reported(rows), self.labels, self.coordinate, self.heads, name="scores")
        order = by_value(self.coordinate, self.labels)
        return [
            Section("Where each method ends", f"{self.ending} {INTERVALS}", [final]),
            Section("All of it", self.whole, [summary(rows, self.columns, order=order)]),
        ]

    def sections(self, rows: Sequence[Row]) -> list[Section]:
        """The tables, and the curves at each value."""
        final_rows = reported(rows)
        drawn = curves_at(final_rows, self.labels, self.signals, self.coordinate, self.heads)
        return [*self.tables(rows), *drawn]
