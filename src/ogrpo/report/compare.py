"""Several runs side by side: a table of what they came to, and one of where they differ."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import flat, spent
from ogrpo.report.scores import MEAN_REWARD, PASS_AT_1, evaluations, interval
from ogrpo.system.terminal import shown


def results(runs: Sequence[RunDir]) -> Table:
    """Returns a row for each run: Pass@1 where all of them have it, else the mean reward, and cost.

    Raises:
      ValueError: a run has no evaluation yet, or the runs have no figure in common.
    """
    recorded = [run.read_metrics() for run in runs]
    evaluated = [evaluations(records) for records in recorded]
    for run, records in zip(runs, evaluated, strict=True):
        if not records:
            raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    everywhere = [
        prefix
        for prefix in (PASS_AT_1, MEAN_REWARD)
        if all(r.get(f"{prefix}/sampled") is not None for records in evaluated for r in records)
    ]
    if not everywhere:
        raise ValueError(
            f"the runs in {', '.join(str(run.path) for run in runs)} have no held-out figure in"
            " common: one has Pass@1, and another, of which no reward decides success, a mean"
            " reward; older runs have no mean reward"
        )
    prefix = everywhere[0]
    rows = [
        (
            name,
            interval(scored[0], f"{prefix}/sampled"),
            interval(scored[-1], f"{prefix}/sampled"),
            interval(scored[-1], f"{prefix}/greedy"),
            f"{scored[-1]['completions']:,}",
            f"{scored[-1]['updates']:,}",
            f"{scored[-1]['flops/update'] + scored[-1]['flops/rollout']:.2g}",
            f"{spent(records[: records.index(scored[-1]) + 1]):.0f}",
        )
        for name, scored, records in zip(labels(runs), evaluated, recorded, strict=True)
    ]
    figure = "Pass@1" if prefix == PASS_AT_1 else "mean reward"
    heads = ("run", f"{figure} sampled, before", "after", "greedy, after", "completions", "updates")
    title = "What the runs came to, 95 % confidence intervals"
    return _table(title, (*heads, "FLOPs", "seconds"), rows)


def differences(runs: Sequence[RunDir]) -> Table | Text:
    """Returns a row for each option in which the runs differ, or a line where none does."""
    configs = [dict(flat(run.read_config())) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    rows = [(name, *(str(config.get(name)) for config in configs)) for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        return Text("Their options are all the same.")
    return _table("Where their options differ", ("option", *labels(runs)), rows)


def labels(runs: Sequence[RunDir]) -> list[str]:
    """Returns the names of the runs' folders, or their paths where two names are the same."""
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{n}: {run.path}" for n, run in enumerate(runs, start=1)]


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    return table
