"""Tables of rows: means with 95 % t-intervals, the settings tried, claims, what failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from experiments.grid.cell import Coordinates, canonical, place_name, short
from experiments.grid.figures import Picture
from experiments.grid.rows import SCORE, Row, Rows, diverged, final, groups, reported, where
from experiments.grid.signals import ending, fallen
from experiments.grid.variants import settings_count
from experiments.grid.verdicts import (
    Claim,
    Difference,
    Verdict,
    difference,
    mean_and_interval,
    of_claim,
    surviving,
)

Value = str | Difference | Verdict
"""Content of a table's cell until the study's differences are corrected together."""
Heads = Mapping[Any, str]
"""Values of a coordinate, each with its heading."""


class Column(NamedTuple):
    """A heading, and the value for the rows of one method over its seeds."""

    head: str
    of: Callable[[Rows], Value]


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
        return "\n".join(
            f"| {' | '.join(shown(cell).replace('|', '‖') for cell in line)} |" for line in lines
        )


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


def plus_minus(values: Sequence[float], form: str = ".3f") -> str:
    """Returns mean ± half the width of its 95 % t-interval."""
    mean, half = mean_and_interval(values)
    if not np.isfinite(mean):
        return "–"
    return f"{mean:{form}}" + ("" if np.isnan(half) else f" ± {half:{form.lstrip('+')}}")


def mean_score(rows: Rows) -> float:
    """Returns the mean final score over seeds."""
    return mean_and_interval([final(row) for row in rows])[0]


def score(name: str = SCORE, form: str = ".3f") -> Callable[[Rows], str]:
    """Returns a column: the final value of a score over seeds."""
    return lambda rows: plus_minus([final(row, name) for row in rows], form)


def average(name: str, form: str = ",.0f") -> Callable[[Rows], str]:
    """Returns a column: the final value of a counter, mean over seeds."""
    return lambda rows: f"{np.mean([final(row, name) for row in rows]):{form}}"


def over_run(name: str, form: str = ".3f") -> Callable[[Rows], str]:
    """Returns a column: the mean of a signal over a run's steps, over seeds."""

    def column(rows: Rows) -> str:
        known = [[x for x in row["steps"].get(name, []) if x is not None] for row in rows]
        means = [float(np.mean(values)) for values in known if values]
        return plus_minus(means, form) if means else "–"

    return column


def against(others: Rows, name: str = SCORE) -> Callable[[Rows], Value]:
    """Returns a column: the difference to other rows, seed by seed; these are the reference."""
    keys = {row["key"] for row in others}

    def column(rows: Rows) -> Value:
        if {row["key"] for row in rows} == keys:
            return "reference"
        return difference(rows, others, name)

    return column


def at(rows: Rows, coordinate: str, value: float | str, **is_: Any) -> list[Row]:
    """Returns the rows at a value of the coordinate whose other fields have these values."""
    return where(rows, lambda row: row["coordinates"][coordinate] == value, **is_)


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
        return against(at(rows, coordinate, value, label=other))(trials)

    return column


SAMPLED, GREEDY = (
    Column("Pass@1, sampled", score()),
    Column("Pass@1, greedy", score("pass@1/greedy")),
)
FINAL = Column("final Pass@1", score())
COMPLETIONS, UPDATES = (Column(name, average(name)) for name in ("completions", "updates"))
KL = Column("KL(π‖μ)", ending("kl/pi_mu", ".2g"))
ENTROPY = Column("entropy", ending("entropy", ".3f"))
LENGTH = Column("tokens a completion", ending("tokens/completion", ".1f"))
GRADIENT = Column("norm of the gradient", over_run("grad_norm"))
FELL = Column("fell", fallen)


def by_value(coordinate: str, labels: Sequence[str]) -> Callable[[Rows], Any]:
    """Returns an order of a summary's lines: by the coordinate, then as the methods are listed."""

    def key(trials: Rows) -> Any:
        label = trials[0]["label"]
        return trials[0]["coordinates"][coordinate], (*labels, label).index(label)

    return key


def scores_at(rows: Rows, labels: Sequence[str], coordinate: str, heads: Heads) -> Table:
    """Returns final Pass@1 of each method at each value; a dash where one was not run."""

    def ending_at(label: str, value: Any) -> str:
        trials = at(rows, coordinate, value, label=label)
        return score()(trials) if trials else "–"

    known = [label for label in labels if where(rows, label=label)]
    lines = [[label, *(ending_at(label, value) for value in heads)] for label in known]
    return Table("scores", ("method", *heads.values()), lines)


def settings_of(rows: Rows) -> dict[str, list[tuple[float, Row]]]:
    """Returns for each method and place its settings with their mean tuning scores."""
    tuning: dict[str, dict[str, list[Row]]] = {}
    for place, trials in groups(row for row in rows if row["role"] == "tuning").items():
        for row in trials:
            settings = tuning.setdefault(place_name(place), {})
            settings.setdefault(settings_text(row["setting"]), []).append(row)
    return {
        name: [
            (float(np.mean([final(row) for row in trials])), trials[0])
            for trials in settings.values()
        ]
        for name, settings in tuning.items()
    }


def setting_column(rows: Rows, *, lead: bool = False) -> Callable[[Rows], str]:
    """Returns a column: the setting of a method, and whether it is at the edge of those tried.

    With `lead` also by how much its tuning score is above that of the next best setting.
    """
    tuning = settings_of(rows)

    def column(trials: Rows) -> str:
        setting = trials[0]["setting"]
        place = place_name((trials[0]["label"], canonical(dict(trials[0]["coordinates"]))))
        tried = tuning.get(place, [])
        text = settings_text(setting) + edge(setting, [row["setting"] for _, row in tried])
        scores = {settings_text(row["setting"]): score for score, row in tried}
        best = scores.pop(settings_text(setting), None)
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
    columns: Sequence[Column] = (COMPLETIONS, UPDATES, SAMPLED, GREEDY),
    *,
    name: str = "summary",
    order: Callable[[Rows], Any] | None = None,
) -> Table:
    """Returns a line for each method and place, of the rows that are reported; the best first."""
    final_rows, number = groups(reported(rows)), settings_count(rows)
    key = order or (lambda trials: -np.nan_to_num(mean_score(trials)))
    setting = setting_column(rows)
    lines = [
        [
            place_name(place),
            setting(trials),
            str(number.get(place, 0)),
            *(column.of(trials) for column in columns),
            seeds_text(trials),
        ]
        for place, trials in sorted(final_rows.items(), key=lambda item: key(item[1]))
    ]
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


def settings_tried(rows: Rows) -> Table:
    """Returns every setting of every method with its score on the tuning seeds."""
    tuning: dict[tuple[str, str], list[Row]] = {}
    for place, trials in groups(row for row in rows if row["role"] == "tuning").items():
        for row in trials:
            tuning.setdefault((place_name(place), settings_text(row["setting"])), []).append(row)
    lines = [[*key, score()(trials), seeds_text(trials)] for key, trials in tuning.items()]
    return Table("tuning", ("method", "setting", f"{SCORE} (validation)", "seeds"), lines)


def failures(notes: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the cells that failed, each with its last words."""
    lines = [
        [
            str(note["label"]),
            settings_text({**note["coordinates"], **note["setting"], "seed": note["seed"]}),
            str(note["words"]).splitlines()[-1] if note["words"] else "",
        ]
        for note in notes
    ]
    return Table("failed", ("method", "cell", "last words"), lines)
