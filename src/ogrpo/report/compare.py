"""Several runs side by side: a table of what they came to, one of where they differ, a page."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from ogrpo.report.page import render
from ogrpo.report.plots import STYLE, points
from ogrpo.report.run_dir import RunDir
from ogrpo.report.scores import MEAN_REWARD, PASS_AT_1, evaluations, interval
from ogrpo.system.files import write_text
from ogrpo.system.terminal import shown

Record = dict[str, Any]
Row = tuple[str, ...]
SAME_OPTIONS = "Their options are all the same."
CURVES = (
    ("reward", "Training reward"),
    ("kl/mu_pi", "KL(μ‖π), nats a token"),
    ("ess", "Effective sample size, share of tokens"),
    ("entropy", "Entropy, nats a token"),
)


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
    for run in runs:
        scored, records = evaluated(run), run.read_metrics()
        first, last = scored[0], scored[-1]
        seconds = sum(v for r in records for k, v in r.items() if k.startswith("seconds/"))
        rows.append(
            (
                run.path.name,
                interval(first, f"{prefix}/sampled"),
                interval(last, f"{prefix}/sampled"),
                interval(last, f"{prefix}/greedy"),
                f"{last['completions']:,}",
                f"{last['updates']:,}",
                f"{last['flops/update'] + last['flops/rollout']:.3g}",
                f"{seconds:.0f}",
            )
        )
    return rows


def results_table(runs: Sequence[RunDir]) -> Table:
    """Returns the results as a table."""
    heads = columns(headline(runs))
    return _table("What the runs came to, 95 % confidence intervals", heads, results(runs))


def differences(runs: Sequence[RunDir]) -> list[Row]:
    """Returns the options in which the runs differ: name, then each run's value."""
    configs = [dict(_flat(run.read_config())) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [(name, *(str(config.get(name)) for config in configs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def differences_table(runs: Sequence[RunDir]) -> Table | Text:
    """Returns the options that differ as a table, or a line where none does."""
    rows = differences(runs)
    if not rows:
        return Text(SAME_OPTIONS)
    heads = ("option", *(run.path.name for run in runs))
    return _table("Where their options differ", heads, rows)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    return table


def curves(runs: Sequence[RunDir], key: str, title: str) -> Figure:
    """Draws a line for each run, against completions."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("completions collected")
    for run in runs:
        x, y = points(run.read_metrics(), key)
        label = f" {run.path.name}"  # one that begins with _ would be left out
        axes.plot(x, y, label=label, marker="o" if len(x) < 30 else None, markersize=4)
    for text in axes.legend(fontsize=9).get_texts():
        text.set_parse_math(False)  # a folder may have two dollar signs in its name
    return figure


def write_page(runs: Sequence[RunDir], path: Path) -> None:
    """Writes a page with both tables and the curves."""
    compared = headline(runs)
    drawn = [
        (f"{compared.prefix}/{how}", f"Held-out {compared.name}, {how}")
        for how in ("sampled", "greedy")
    ]
    with mpl.rc_context(STYLE):
        plots = [
            {"name": title, "data": _png(curves(runs, key, title))}
            for key, title in (*drawn, *CURVES)
        ]
    page = render(
        Path(__file__).with_name("compare.html.j2"),
        title="ogrpo compare",
        columns=columns(compared),
        rows=results(runs),
        options=("option", *(run.path.name for run in runs)),
        differences=differences(runs),
        same_options=SAME_OPTIONS,
        plots=plots,
    )
    write_text(path, page)


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()
