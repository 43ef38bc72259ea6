"""What a run shows while it runs, and the table at its end."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

Record = dict[str, Any]
Metrics = tuple[tuple[str, str, str], ...]
"""Label, key and format of each."""
LIVE = (
    ("reward", "reward", "{:.2f}"),
    ("Pass@1", "pass@1/sampled", "{:.2f}"),
    ("KL(μ‖π)", "kl/mu_pi", "{:.4f}"),
    ("ESS", "ess", "{:.2f}"),
    ("stale", "staleness", "{:.1f}"),
    ("tok/s", "tokens/s", "{:,.0f}"),
)
SERVERS = (
    ("running", "server/running", "{:.0f}"),
    ("waiting", "server/waiting", "{:.0f}"),
    ("KV cache", "server/kv_cache_usage", "{:.0%}"),
    ("push", "sync/seconds", "{:.2f} s"),
)
"""With external servers: their peaks in the step, and what the last push of weights took."""


def live_text(latest: Record, metrics: Metrics = LIVE) -> str:
    """The newest known value of each live metric."""
    shown = [
        f"{label} {form.format(latest[key])}"
        for label, key, form in metrics
        if latest.get(key) is not None
    ]
    return "  ".join(shown)


def lines(latest: Record) -> list[str]:
    """What is shown of a run, and of its servers where there are any."""
    return [text for text in (live_text(latest), live_text(latest, SERVERS)) if text]


class Display:
    """A progress bar on a terminal; a line per evaluation elsewhere."""

    def __init__(self, progress: Progress, console: Console, steps: int, step: int) -> None:
        self._progress, self._console = progress, console
        self._bar = progress.add_task("", total=steps, completed=step)
        self._latest: Record = {}

    def show(self, record: Record) -> None:
        """Takes the newest record in."""
        self._latest |= {key: value for key, value in record.items() if value is not None}
        text = lines(self._latest)
        self._progress.update(self._bar, completed=record["step"], description="\n".join(text))
        if not self._console.is_terminal and record["pass@1/sampled"] is not None:
            self._console.print(f"step {record['step']:>4}  {'  '.join(text)}", soft_wrap=True)


@contextmanager
def warm_start_bar(console: Console, steps: int) -> Iterator[Callable[[int, float], None]]:
    """Shows the warm start: a bar on a terminal, a line at the end elsewhere."""
    columns = (TextColumn("warm start"), BarColumn(bar_width=20), MofNCompleteColumn())
    text, clock = TextColumn("loss {task.fields[loss]:.3f} nats a token"), TimeElapsedColumn()
    with Progress(*columns, text, clock, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps, loss=float("nan"))

        def show(step: int, loss: float) -> None:
            bar.update(task, completed=step, loss=loss)
            if step == steps and not console.is_terminal:
                console.print(f"warm start: {steps} steps, loss {loss:.3f} nats a token")

        yield show


@contextmanager
def display(console: Console, steps: int, step: int) -> Iterator[Display]:
    """Shows a run's progress until the block ends."""
    progress = Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        yield Display(progress, console, steps, step)


def interval(record: Record, key: str) -> str:
    """A score with its confidence interval."""
    low, high = record[f"{key}/low"], record[f"{key}/high"]
    return f"{record[key]:.3f}  [{low:.3f}, {high:.3f}]"


def pass_at_k_names(records: list[Record]) -> dict[str, str]:
    """Keys of the Pass@k that all records have, with their names.

    None with one sample a prompt, nor where rewards are graded.
    """
    measured = ({key for key, value in r.items() if value is not None} for r in records)
    shared = set.intersection(*measured)
    found = {key: re.fullmatch(r"pass@(\d+)/sampled", key) for key in records[-1]}
    return {
        key: f"Pass@{match[1]}"
        for key, match in found.items()
        if match and match[1] != "1" and key in shared
    }


def summary_table(records: list[Record]) -> Table:
    """Before and after."""
    evaluated = [r for r in records if r["pass@1/sampled"] is not None]
    before, after = evaluated[0], evaluated[-1]
    table = Table(title="Held-out problems, 95 % confidence interval")
    for column in ("", f"before (step {before['step']})", f"after (step {after['step']})"):
        table.add_column(column)
    temperature = before["pass@1/temperature"]
    for label, key in (
        (f"Pass@1, sampled at T = {temperature:g}", "pass@1/sampled"),
        ("Pass@1, greedy", "pass@1/greedy"),
        *(
            (f"{name}, sampled at T = {temperature:g}", key)
            for key, name in pass_at_k_names(evaluated).items()
        ),
    ):
        table.add_row(label, interval(before, key), interval(after, key))
    return table
