"""Tables of rows: means with their standard errors, the settings tried, what failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.grid.cell import Coordinates, place_name, short
from experiments.grid.choose import SCORE, by_seed, diverged, final, groups, reported, tried
from experiments.grid.rows import Row

Column = tuple[str, Callable[[Sequence[Row]], str]]
"""A heading, and what it says of the rows of one method over its seeds."""


@dataclass(frozen=True)
class Table:
    """A table of a page and of docs/."""

    name: str
    """Of its markers in docs/: letters, digits and dashes."""
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """As GitHub has them."""
        rule = ["---"] * len(self.columns)
        lines = (self.columns, rule, *self.lines)
        return "\n".join(
            f"| {' | '.join(cell.replace('|', '‖') for cell in line)} |" for line in lines
        )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error, NaN of one seed."""
    array = np.asarray(values, np.float64)
    error = array.std(ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.nan
    return float(array.mean()), float(error)


def plus_minus(values: Sequence[float], form: str = ".3f") -> str:
    """Mean ± standard error."""
    mean, error = mean_and_error(values)
    if not np.isfinite(mean):
        return "–"
    return f"{mean:{form}}" + ("" if np.isnan(error) else f" ± {error:{form.lstrip('+')}}")


def score(name: str = SCORE, form: str = ".3f") -> Callable[[Sequence[Row]], str]:
    """The final value of a score, mean ± standard error over seeds."""
    return lambda rows: plus_minus([final(row, name) for row in rows], form)


def average(name: str, form: str = ",.0f") -> Callable[[Sequence[Row]], str]:
    """The final value of a counter, mean over seeds."""
    return lambda rows: f"{np.mean([final(row, name) for row in rows]):{form}}"


def over_run(name: str, form: str = ".3f") -> Callable[[Sequence[Row]], str]:
    """The mean of a signal over a run's steps, mean ± standard error over seeds."""

    def told(rows: Sequence[Row]) -> str:
        known = [[x for x in row["steps"].get(name, []) if x is not None] for row in rows]
        means = [float(np.mean(values)) for values in known if values]
        return plus_minus(means, form) if means else "–"

    return told


def paired(rows: Sequence[Row], others: Sequence[Row], name: str = SCORE) -> tuple[float, float]:
    """Mean difference over the seeds that both have, and its standard error."""
    mine, theirs = by_seed(rows, name), by_seed(others, name)
    shared = [seed for seed in mine if seed in theirs]
    if not shared:
        return float("nan"), float("nan")
    return mean_and_error([mine[seed] - theirs[seed] for seed in shared])


def against(others: Sequence[Row], name: str = SCORE) -> Callable[[Sequence[Row]], str]:
    """The difference to other rows, seed by seed."""

    def told(rows: Sequence[Row]) -> str:
        mean, error = paired(rows, others, name)
        return "–" if np.isnan(mean) else f"{mean:+.3f} ± {error:.3f}"

    return told


def chosen_setting(rows: Sequence[Row]) -> str:
    """The setting that was chosen."""
    return settings_text(rows[0]["setting"])


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
    key = order or (lambda trials: -np.nan_to_num(mean_and_error([final(r) for r in trials])[0]))
    places = sorted(told, key=lambda place: key(told[place]))
    lines = [
        [
            place_name(place),
            chosen_setting(told[place]),
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
