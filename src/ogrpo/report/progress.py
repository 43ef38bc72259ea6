"""Progress of a run while it runs, and the table at its end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ogrpo.report.scores import Record, evaluations, interval, is_evaluated, reward_rows, scores
from ogrpo.system.terminal import shown

ShownMetrics = tuple[tuple[str, str, str], ...]
"""Label, key and format of each."""
LIVE = (
    ("reward", "reward", "{:.2f}"),
    ("Pass@1", "pass@1/sampled", "{:.2f}"),
    ("held-out reward", "heldout/reward/sampled", "{:.2f}"),
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


def live_text(latest: Record, metrics: ShownMetrics = LIVE) -> str:
    """Returns the newest value of each live metric; the held-out reward where none is Pass@1."""
    known = {key for _, key, _ in metrics if latest.get(key) is not None}
    if "pass@1/sampled" in known:
        known -= {"heldout/reward/sampled"}
    texts = (f"{label} {form.format(latest[key])}" for label, key, form in metrics if key in known)
    return "  ".join(texts)


COMPILING = "compiling the programs of {} ..."


@contextmanager
def warm_start_bar(
    console: Console, steps: int
) -> Iterator[Callable[[int, float, float | None], None]]:
    """Shows the warm start: a bar, each validation loss; ten lines in all off a terminal."""
    columns = (
        *(TextColumn("warm start"), BarColumn(bar_width=20), MofNCompleteColumn()),
        *(TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("compiling ...", total=steps)
        if not console.is_terminal:
            console.print("warm start: compiling ...")
        first: tuple[int, float] | None = None  # step, when it was done: without compiling

        def show(step: int, loss: float, validation: float | None) -> None:
            bar.update(task, completed=step, description=f"loss {loss:.3f} nats a token")
            if validation is not None:
                where = f"imitation, step {step} of {steps}: loss {loss:.3f}"
                console.print(f"{where}, of validation solutions {validation:.3f} nats a token")
            nonlocal first
            first = first or (step, time.monotonic())
            if not console.is_terminal and (step % max(1, steps // 10) == 0 or step == steps):
                spent = time.monotonic() - first[1]
                left = (steps - step) * spent / max(1, step - first[0])
                where = f"warm start: step {step} of {steps}, loss {loss:.3f} nats a token"
                console.print(f"{where}, {left:.0f} s left" if step < steps else where)

        yield show


@contextmanager
def weights_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Shows how weights are fetched and converted: a bar on a terminal, a line each elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn())
    disable = not console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=disable) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"{what} weights", total=of)
                if disable:
                    console.print(f"{what} weights")
            bar.update(tasks[what], completed=done)

        yield show


@contextmanager
def display(
    console: Console, steps: int, step: int, compiled: Callable[[], float]
) -> Iterator[Callable[[Record], None]]:
    """Shows a run's progress until the block ends: a bar, or lines where there is no terminal.

    It yields a function that shows each new record, and says which programs are compiled and how
    long that took.

    Args:
      step: the last that was taken.
      compiled: returns the seconds of compiling so far.
    """
    columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.description}"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    disable = not console.is_terminal
    with Progress(*columns, *times, console=console, disable=disable) as progress:
        first = COMPILING.format(f"step {step + 1}" if step else "the evaluation")
        bar = progress.add_task(first, total=steps, completed=step)
        latest: Record = {}

        def show(record: Record) -> None:
            latest.update({key: value for key, value in record.items() if value is not None})
            text = [t for t in (live_text(latest), live_text(latest, SERVERS)) if t]
            if disable and is_evaluated(record):
                console.print(f"step {record['step']:>4}  {'  '.join(text)}", soft_wrap=True)
            if record["step"] == 0:
                text.append(COMPILING.format("the update"))
                if disable:
                    console.print(text[-1])
            elif record["step"] == step + 1:
                console.print(f"programs compiled so far, in {compiled():.0f} s")
            progress.update(bar, completed=record["step"], description="\n".join(text))

        yield show


def summary_table(records: list[Record]) -> Table:
    """Returns held-out figures before and after."""
    evaluated = evaluations(records)
    before, after = evaluated[0], evaluated[-1]
    table = Table(title="Held-out problems, 95 % confidence interval")
    for column in ("", f"before (step {before['step']})", f"after (step {after['step']})"):
        table.add_column(column)
    for score in scores(evaluated):
        table.add_row(score.label, interval(before, score.key), interval(after, score.key))
    for name, first, last, _ in reward_rows(evaluated):
        table.add_row(Text(shown(f"mean of {name}, sampled")), first, last)
    return table
