"""Several runs side by side: a table of what they came to, one of where they differ, a page."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from ogrpo.files import write_text
from ogrpo.report.page import render
from ogrpo.report.plots import STYLE, points
from ogrpo.report.progress import interval
from ogrpo.report.run_dir import RunDir
from ogrpo.terminal import shown

Record = dict[str, Any]
Row = tuple[str, ...]
CURVES = (
    ("pass@1/sampled", "Held-out Pass@1, sampled"),
    ("pass@1/greedy", "Held-out Pass@1, greedy"),
    ("reward", "Training reward"),
    ("kl/mu_pi", "KL(μ‖π), nats a token"),
    ("ess", "Effective sample size, share of tokens"),
    ("entropy", "Entropy, nats a token"),
)
RESULTS = (
    *("run", "Pass@1 sampled, before", "after", "greedy, after", "completions", "updates"),
    *("FLOPs", "seconds"),
)


def evaluated(run: RunDir) -> list[Record]:
    """The records of a run that have an evaluation.

    Raises:
      ValueError: there is none yet.
    """
    found = [r for r in run.read_metrics() if r.get("pass@1/sampled") is not None]
    if not found:
        raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    return found


def results(runs: Sequence[RunDir]) -> list[Row]:
    """One row a run."""
    return [_result(run) for run in runs]


def _result(run: RunDir) -> Row:
    scores, records = evaluated(run), run.read_metrics()
    first, best = scores[0], scores[-1]
    flops = best["flops/update"] + best["flops/rollout"]
    spent = sum(v for r in records for k, v in r.items() if k.startswith("seconds/"))
    return (
        run.path.name,
        interval(first, "pass@1/sampled"),
        interval(best, "pass@1/sampled"),
        interval(best, "pass@1/greedy"),
        f"{best['completions']:,}",
        f"{best['updates']:,}",
        f"{flops:.3g}",
        f"{spent:.0f}",
    )


def results_table(runs: Sequence[RunDir]) -> Table:
    """What the runs came to."""
    return _table("What the runs came to, 95 % confidence intervals", RESULTS, results(runs))


def differences(runs: Sequence[RunDir]) -> list[Row]:
    """The options in which the runs differ: name, then each run's value."""
    configs = [dict(_flat(run.read_config())) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [(name, *(str(config.get(name)) for config in configs)) for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def differences_table(runs: Sequence[RunDir]) -> Table:
    """Where the runs' options differ."""
    columns = ("option", *(run.path.name for run in runs))
    return _table("Where their options differ", columns, differences(runs))


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
    """One line a run, against completions."""
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
    """A page of its own with both tables and the curves."""
    with mpl.rc_context(STYLE):
        plots = [{"name": key, "data": _png(curves(runs, key, title))} for key, title in CURVES]
    page = render(
        Path(__file__).with_name("compare.html.j2"),
        title="ogrpo compare",
        columns=RESULTS,
        rows=results(runs),
        options=("option", *(run.path.name for run in runs)),
        differences=differences(runs),
        plots=plots,
    )
    write_text(path, page)


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()
