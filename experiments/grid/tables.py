"""Tables of rows: a line for each method, the settings tried, claims, what failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from experiments.grid.cell import Coordinates, place_name, place_of, short
from experiments.grid.columns import PASS_AT_1, SPENT, Column, Value, score
from experiments.grid.figures import Picture
from experiments.grid.rows import Row, Rows, diverged, final, groups, reported, where
from experiments.grid.verdicts import Claim, Difference, Verdict, of_claim, surviving

Heads = Mapping[Any, str]
"""Values of a coordinate, each with its heading."""


@dataclass(frozen=True)
class Table:
    """A table of a page and of docs/."""

    name: str
    """Name in the markers of docs/: letters, digits and dashes."""
    columns: Sequence[str]
    lines: Sequence[Sequence[Value]]
    caption: str = ""

    def markdown(self) -> str:
        """Returns the table as GitHub has it."""
        rule = ["---"] * len(self.columns)
        lines = (self.columns, rule, *self.lines)
        texts = ([shown(cell).replace("|", "‖") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)


class Section(NamedTuple):
    """A heading with the text, tables and pictures below it."""

    heading: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def shown(value: Value, survivors: frozenset[Difference] = frozenset()) -> str:
    """Returns a cell as text; a star marks a difference that survives Holm's correction."""
    if isinstance(value, Difference):
        return value.text(survives=value in survivors)
    if isinstance(value, Verdict):
        return value.word(survives=value.difference in survivors)
    return value


def corrected(tables: Sequence[Table]) -> list[Table]:
    """Returns the tables as text, all their differences corrected as one family."""
    family = [x for table in tables for line in table.lines for x in line]
    survivors = frozenset(surviving([x for x in family if isinstance(x, Difference)]))
    return [
        replace(table, lines=[[shown(value, survivors) for value in line] for line in table.lines])
        for table in tables
    ]


def mean_score(rows: Rows) -> float:
    """Returns the mean final score over seeds."""
    return float(np.mean([final(row) for row in rows]))


def by_value(coordinate: str, labels: Sequence[str]) -> Callable[[Rows], Any]:
    """Returns an order of a summary's lines: by the coordinate, then as the methods are listed."""

    def key(trials: Rows) -> Any:
        label = trials[0]["label"]
        return trials[0]["coordinates"][coordinate], (*labels, label).index(label)

    return key


def scores_at(rows: Rows, labels: Sequence[str], coordinate: str, heads: Heads) -> Table:
    """Returns final Pass@1 of each method at each value; a dash where one was not run."""

    def ending_at(label: str, value: Any) -> str:
        trials = where(where(rows, label=label), **{coordinate: value})
        return score()(trials) if trials else "–"

    known = [label for label in labels if where(rows, label=label)]
    lines = [[label, *(ending_at(label, value) for value in heads)] for label in known]
    return Table("scores", ("method", *heads.values()), lines)


def settings_of(rows: Rows) -> dict[str, dict[str, list[Row]]]:
    """Returns the tuning rows by method and place, and by setting."""
    tuning: dict[str, dict[str, list[Row]]] = {}
    for place, trials in groups(row for row in rows if row["role"] == "tuning").items():
        settings = tuning.setdefault(place_name(place), {})
        for row in trials:
            settings.setdefault(settings_text(row["setting"]), []).append(row)
    return tuning


def setting_column(rows: Rows, *, lead: bool = False) -> Callable[[Rows], str]:
    """Returns a column: the setting of a method, and whether it is at the edge of those tried.

    With `lead` also by how much its tuning score is above that of the next best setting.
    """
    tuning = settings_of(rows)

    def column(trials: Rows) -> str:
        setting = trials[0]["setting"]
        place = place_of(trials[0]["label"], trials[0]["coordinates"])
        tried = tuning.get(place_name(place), {})
        text = settings_text(setting)
        scores = {name: mean_score(others) for name, others in tried.items()}
        best = scores.pop(text, None)
        text += edge(setting, [others[0]["setting"] for others in tried.values()])
        if lead and scores and best is not None:
            text += f", by {best - max(scores.values()):.3f}"
        return text

    return column


def edge(setting: Coordinates, tried: Sequence[Coordinates]) -> str:
    """Returns which end of the values tried a setting is at; nothing where it is inside."""
    for name, value in setting.items():
        values = [other[name] for other in tried]
        if len({*values}) == 1:
            return " (only one tried)"
        if values and value in (min(values), max(values)):
            return f" ({'smallest' if value == min(values) else 'largest'} tried)"
    return ""


def claims_table(claims: Sequence[Claim], rows: Rows) -> Table:
    """Returns each claim whose methods were run: difference, verdict, settings it rests on."""
    setting = setting_column(rows, lead=True)
    lines = []
    for claim in claims:
        sides = [where(reported(rows), **pick) for pick in (claim.one, claim.other)]
        if all(sides):
            between = of_claim(claim, rows)
            rests = "; ".join(dict.fromkeys(setting(side) for side in sides))
            lines.append([claim.text, between, Verdict(between, claim.relation), rests])
    return Table("claims", ("claim", "difference", "verdict", "rests on the settings"), lines)


def settings_text(setting: Coordinates) -> str:
    """Returns a setting for people."""
    return ", ".join(f"{name} {short(value)}" for name, value in setting.items()) or "–"


def summary(
    rows: Rows,
    columns: Sequence[Column] = (*SPENT, *PASS_AT_1),
    *,
    name: str = "summary",
    order: Callable[[Rows], Any] | None = None,
) -> Table:
    """Returns a line for each method and place, of the rows that are reported; the best first."""
    final_rows, tuning = groups(reported(rows)), settings_of(rows)
    key = order or (lambda trials: -np.nan_to_num(mean_score(trials)))
    setting = setting_column(rows)
    lines = []
    for place, trials in sorted(final_rows.items(), key=lambda item: key(item[1])):
        method, values = place_name(place), (column.of(trials) for column in columns)
        tried = str(len(tuning.get(method, {})))
        lines.append([method, setting(trials), tried, *values, seeds_text(trials)])
    heads = ("method", "setting", "settings tried", *(c.head for c in columns), "seeds")
    return Table(name, heads, lines)


def in_order(rows: Rows, labels: Sequence[str], columns: Sequence[Column], *, name: str) -> Table:
    """Returns the `summary` of these methods, in this order."""
    places = {label: n for n, label in enumerate(labels)}
    listed = [row for row in rows if row["label"] in places]
    return summary(listed, columns, name=name, order=lambda trials: places[trials[0]["label"]])


def seeds_text(rows: Rows) -> str:
    """Returns how many seeds, and how many of them diverged."""
    lost = sum(map(diverged, rows))
    return f"{len(rows)}" + (f" ({lost} diverged)" if lost else "")


def settings_tried(rows: Rows, name: str) -> Table:
    """Returns every setting of every method with this score on the tuning seeds."""
    lines = [
        [place, setting, score(name)(trials), seeds_text(trials)]
        for place, settings in settings_of(rows).items()
        for setting, trials in settings.items()
    ]
    return Table("tuning", ("method", "setting", f"{name} (validation)", "seeds"), lines)


def failures(notes: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the cells that failed, each with its last words."""
    lines = []
    for note in notes:
        place = {**note["coordinates"], **note["setting"], "seed": note["seed"]}
        last = str(note["words"]).splitlines()[-1] if note["words"] else ""
        lines.append([str(note["label"]), settings_text(place), last])
    return Table("failed", ("method", "cell", "last words"), lines)
