"""Several runs side by side: a table of what they came to, one of where they differ, a page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from ogrpo.report.curves import CHARTS, FROM_ZERO, SHARE, Chart, of_runs
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import flat, spent
from ogrpo.report.scores import MEAN_REWARD, PASS_AT_1, evaluations, interval
from ogrpo.system.files import write_text
from ogrpo.system.terminal import shown

Record = dict[str, Any]
Row = tuple[str, ...]
COMPARED = ("reward", "kl/mu_pi", "ess", "clipped", "entropy", "length", "grad_norm")
"""Keys of `CHARTS` that runs are compared by, beside the held-out figures."""


class Headline(NamedTuple):
    """The figure that is compared on held-out problems."""

    prefix: str
    name: str


def headline(runs: Sequence[RunDir]) -> Headline:
    """Returns Pass@1 where each evaluation of all runs has it, else the mean reward.

    Raises:
      ValueError: a run has no evaluation yet, or the runs have no figure in common.
    """
    records = [record for run in runs for record in evaluated(run)]
    for prefix, name in ((PASS_AT_1, "Pass@1"), (MEAN_REWARD, "mean reward")):
        if all(record.get(f"{prefix}/sampled") is not None for record in records):
            return Headline(prefix, name)
    names = ", ".join(str(run.path) for run in runs)
    raise ValueError(
        f"the runs in {names} have no held-out figure in common: one has Pass@1, and another, of"
        " which no reward decides success, a mean reward; older runs have no mean reward"
    )


def evaluated(run: RunDir) -> list[Record]:
    """Returns the records of a run that have an evaluation.

    Raises:
      ValueError: there is none yet.
    """
    records = evaluations(run.read_metrics())
    if not records:
        raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    return records


def columns(compared: Headline) -> Row:
    """Returns the heads of the columns of `results`."""
    name = compared.name
    return (
        *("run", f"{name} sampled, before", "after", "greedy, after", "completions", "updates"),
        *("FLOPs", "seconds"),
    )


def results(runs: Sequence[RunDir]) -> list[Row]:
    """Returns a row for each run: scores, what it collected, and what it spent."""
    prefix, rows = headline(runs).prefix, []
    for name, run in zip(labels(runs), runs, strict=True):
        scored, records = evaluated(run), run.read_metrics()
        first, last = scored[0], scored[-1]
        rows.append(
            (
                name,
                interval(first, f"{prefix}/sampled"),
                interval(last, f"{prefix}/sampled"),
                interval(last, f"{prefix}/greedy"),
                f"{last['completions']:,}",
                f"{last['updates']:,}",
                f"{last['flops/update'] + last['flops/rollout']:.3g}",
                f"{spent(records):.0f}",
            )
        )
    return rows


def results_table(runs: Sequence[RunDir]) -> Table:
    """Returns the results as a table."""
    heads = columns(headline(runs))
    return _table("What the runs came to, 95 % confidence intervals", heads, results(runs))


def labels(runs: Sequence[RunDir]) -> list[str]:
    """Returns the names of the runs' folders, or their paths where two names are the same."""
    names = [run.path.name for run in runs]
    paths = [str(run.path) for run in runs]
    unique = len(set(names)) == len(names)
    return names if unique else [f"{n}: {path}" for n, path in enumerate(paths, start=1)]


def differences(runs: Sequence[RunDir]) -> list[Row]:
    """Returns the options in which the runs differ: name, then each run's value."""
    configs = [dict(flat(run.read_config())) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [(name, *(str(config.get(name)) for config in configs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def sameness(runs: Sequence[RunDir]) -> str:
    """Returns a sentence on runs whose options are all the same: whether their records are, too."""
    timed = ("seconds/", "collect/", "reward/", "tokens/s")
    figures = {
        json.dumps(
            [{k: v for k, v in r.items() if not k.startswith(timed)} for r in run.read_metrics()]
        )
        for run in runs
    }
    if len(figures) == 1:
        return (
            "The runs are equal: all options and, but for times, all recorded figures are the same."
        )
    return "Their options are all the same, and their recorded figures are not."


def differences_table(runs: Sequence[RunDir]) -> Table | Text:
    """Returns the options that differ as a table, or a line where none does."""
    rows = differences(runs)
    if not rows:
        return Text(sameness(runs))
    return _table("Where their options differ", ("option", *labels(runs)), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    return table


def write_page(runs: Sequence[RunDir], path: Path) -> None:
    """Writes a page with both tables, and a curve of each run; seeds share a colour."""
    compared, names = headline(runs), labels(runs)
    limits = SHARE if compared.prefix == PASS_AT_1 else (None, None)
    drawn = [
        Chart(f"Held-out {compared.name}, {how}", limits, ((f"{compared.prefix}/{how}", how),))
        for how in ("sampled", "greedy")
    ]
    recorded = {key for run in runs for record in run.read_metrics() for key in record}
    for chart in CHARTS:
        for curve in chart.curves:
            if curve[0] in COMPARED and curve[0] in recorded:
                several = len(chart.curves) > 1
                title = f"{chart.title}: {curve[1]}" if several else chart.title
                drawn.append(Chart(title, chart.limits, (curve,)))
    drawn.append(Chart("Seconds in the loop so far", FROM_ZERO, (("seconds", "seconds"),)))
    rows = differences(runs)
    others = [row for row in rows if row[0] != "seed"]
    groups = [json.dumps([row[n] for row in others]) for n in range(1, len(runs) + 1)]
    curves = [
        (name, group, run.read_metrics())
        for name, group, run in zip(names, groups, runs, strict=True)
    ]
    page = render(
        Path(__file__).with_name("compare.html.j2"),
        title="ogrpo compare",
        columns=columns(compared),
        rows=results(runs),
        options=("option", *names),
        differences=rows,
        same="" if rows else sameness(runs),
        data={**of_runs(curves, drawn), "tokens": []},
    )
    write_text(path, page)
