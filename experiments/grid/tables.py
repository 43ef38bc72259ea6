"""Tables of rows: means with 95 % t-intervals, the settings tried, claims, what failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.grid.cell import Coordinates, canonical, place_name, short
from experiments.grid.choose import SCORE, diverged, final, groups, reported, tried
from experiments.grid.rows import Row, where
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
"""What a cell of a table holds until the study's differences are corrected together."""
Column = tuple[str, Callable[[Sequence[Row]], Value]]
"""A heading, and what it says of the rows of one method over its seeds."""


@dataclass(frozen=True)
class Table:
    """A table of a page and of docs/."""

    name: str
    """Of its markers in docs/: letters, digits and dashes."""
    columns: Sequence[str]
    lines: Sequence[Sequence[Value]]
    caption: str = ""

    def markdown(self) -> str:
        """As GitHub has them."""
        rule = ["---"] * len(self.columns)
        lines = (self.columns, rule, *self.lines)
        return "\n".join(
            f"| {' | '.join(shown(cell).replace('|', '‖') for cell in line)} |" for line in lines
        )


def shown(value: Value, survivors: frozenset[Difference] = frozenset()) -> str:
    """A cell as text; a star marks a difference that survives Holm's correction."""
    if isinstance(value, Difference):
        return value.text(survives=value in survivors)
    if isinstance(value, Verdict):
        return value.word(survives=value.difference in survivors)
    return value


def corrected(tables: Sequence[Table]) -> list[Table]:
    """The tables as text, all their differences corrected as one family."""
    family = [x for table in tables for line in table.lines for x in line]
    survivors = frozenset(surviving([x for x in family if isinstance(x, Difference)]))
    return [
        replace(table, lines=[[shown(value, survivors) for value in line] for line in table.lines])
        for table in tables
    ]


def plus_minus(values: Sequence[float], form: str = ".3f") -> str:
    """Mean ± half the width of its 95 % t-interval."""
    mean, half = mean_and_interval(values)
    if not np.isfinite(mean):
        return "–"
    return f"{mean:{form}}" + ("" if np.isnan(half) else f" ± {half:{form.lstrip('+')}}")


def score(name: str = SCORE, form: str = ".3f") -> Callable[[Sequence[Row]], str]:
    """The final value of a score over seeds."""
    return lambda rows: plus_minus([final(row, name) for row in rows], form)


def average(name: str, form: str = ",.0f") -> Callable[[Sequence[Row]], str]:
    """The final value of a counter, mean over seeds."""
    return lambda rows: f"{np.mean([final(row, name) for row in rows]):{form}}"


def over_run(name: str, form: str = ".3f") -> Callable[[Sequence[Row]], str]:
    """The mean of a signal over a run's steps, over seeds."""

    def told(rows: Sequence[Row]) -> str:
        known = [[x for x in row["steps"].get(name, []) if x is not None] for row in rows]
        means = [float(np.mean(values)) for values in known if values]
        return plus_minus(means, form) if means else "–"

    return told


def against(others: Sequence[Row], name: str = SCORE) -> Callable[[Sequence[Row]], Value]:
    """The difference to other rows, seed by seed; the rows themselves are the reference."""
    keys = {row["key"] for row in others}

    def column(rows: Sequence[Row]) -> Value:
        if {row["key"] for row in rows} == keys:
            return "reference"
        return difference(rows, others, name)

    return column


def settings_of(rows: Sequence[Row], score: str = SCORE) -> dict[str, list[tuple[float, Row]]]:
    """For each method and place its settings with their mean tuning scores, the best first."""
    tuning: dict[str, dict[str, list[Row]]] = {}
    for place, trials in groups(row for row in rows if row["role"] == "tuning").items():
        for row in trials:
            settings = tuning.setdefault(place_name(place), {})
            settings.setdefault(settings_text(row["setting"]), []).append(row)
    return {
        name: sorted(
            (
                (float(np.mean([final(row, score) for row in trials])), trials[0])
                for trials in settings.values()
            ),
            key=lambda scored: -scored[0],
        )
        for name, settings in tuning.items()
    }


def setting_column(rows: Sequence[Row], *, lead: bool = False) -> Callable[[Sequence[Row]], str]:
    """The setting of a method, and whether it is at the edge of those tried.

    With `lead` also by how much its tuning score is above that of the next best setting.
    """
    tuning = settings_of(rows)

    def column(trials: Sequence[Row]) -> str:
        setting = trials[0]["setting"]
        place = place_name((trials[0]["label"], canonical(dict(trials[0]["coordinates"]))))
        ranked = tuning.get(place, [])
        text = settings_text(setting) + edge(setting, [row["setting"] for _, row in ranked])
        scores = {settings_text(row["setting"]): score for score, row in ranked}
        best = scores.pop(settings_text(setting), None)
        if lead and scores and best is not None:
            text += f", by {best - max(scores.values()):.3f}"
        return text

    return column


def edge(setting: Coordinates, tried_settings: Sequence[Coordinates]) -> str:
    """Which end of the values tried a setting is at, in words; nothing where it is inside."""
    for name, value in setting.items():
        values = [other[name] for other in tried_settings]
        if len({*values}) == 1:
            return " (only one tried)"
        if values and value in (min(values), max(values)):
            return f" ({'smallest' if value == min(values) else 'largest'} tried)"
    return ""


def claims_table(claims: Sequence[Claim], rows: Sequence[Row]) -> Table:
    """Each claim whose methods were run: the difference, the verdict, the settings it rests on."""
    setting = setting_column(rows, lead=True)
    lines = []
    for claim in claims:
        sides = [where(reported(rows), **pick) for pick in (claim.one, claim.other)]
        if not all(sides):
            continue
        between = of_claim(claim, rows)
        rests = "; ".join(dict.fromkeys(setting(side) for side in sides))
        lines.append([claim.text, between, Verdict(between, claim.relation), rests])
    return Table("claims", ("claim", "difference", "verdict", "rests on the settings"), lines)


def settings_text(setting: Coordinates) -> str:
    """A setting for people."""
    return ", ".join(f"{name} {short(value)}" for name, value in setting.items()) or "–"


def summary(
    rows: Sequence[Row],
    columns: Sequence[Column] = (),
    *,
    name: str = "summary",
    order: Callable[[Sequence[Row]], Any] | None = None,
    caption: str = "",
) -> Table:
    """One line for each method and place, of the rows that are told; the best first."""
    told = groups(reported(rows))
    number = tried(rows)
    wanted: Sequence[Column] = columns or (
        ("completions", average("completions")),
        ("updates", average("updates")),
        ("Pass@1, sampled", score()),
        ("Pass@1, greedy", score("pass@1/greedy")),
    )
    key = order or (lambda trials: -np.nan_to_num(mean_and_interval([final(r) for r in trials])[0]))
    places = sorted(told, key=lambda place: key(told[place]))
    setting = setting_column(rows)
    lines = [
        [
            place_name(place),
            setting(told[place]),
            str(number.get(place, 0)),
            *(form(told[place]) for _, form in wanted),
            seeds_text(told[place]),
        ]
        for place in places
    ]
    heads = ("method", "setting", "settings tried", *(head for head, _ in wanted), "seeds")
    return Table(name, heads, lines, caption)


def in_order(
    rows: Sequence[Row], labels: Sequence[str], columns: Sequence[Column], *, name: str
) -> Table:
    """`summary` of these methods, in this order."""
    places = {label: n for n, label in enumerate(labels)}
    chosen = [row for row in rows if row["label"] in places]
    return summary(chosen, columns, name=name, order=lambda trials: places[trials[0]["label"]])


def seeds_text(rows: Sequence[Row]) -> str:
    """How many seeds, and how many of them diverged."""
    lost = sum(map(diverged, rows))
    return f"{len(rows)}" + (f" ({lost} diverged)" if lost else "")


def settings_tried(rows: Sequence[Row], score: str = SCORE) -> Table:
    """Every setting of every method with its score on the tuning seeds."""
    found: dict[str, dict[str, list[Row]]] = {}
    for place, trials in groups(row for row in rows if row["role"] == "tuning").items():
        for row in trials:
            setting = settings_text(row["setting"])
            found.setdefault(place_name(place), {}).setdefault(setting, []).append(row)
    lines = [
        [name, setting, plus_minus([final(row, score) for row in trials]), seeds_text(trials)]
        for name, settings in found.items()
        for setting, trials in settings.items()
    ]
    return Table("tuning", ("method", "setting", f"{score} (validation)", "seeds"), lines)


def failures(notes: Sequence[Mapping[str, Any]]) -> Table:
    """The cells that failed, each with its last words."""
    lines = [
        [
            str(note["label"]),
            settings_text({**note["coordinates"], **note["setting"], "seed": note["seed"]}),
            str(note["words"]).splitlines()[-1] if note["words"] else "",
        ]
        for note in notes
    ]
    return Table("failed", ("method", "cell", "last words"), lines)
