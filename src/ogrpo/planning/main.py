"""`plan`: what fits, how long a step takes, and which schedule keeps both sides busy.

Command: ogrpo plan [--model.shape qwen2.5-1.5b --serve.devices 8 ...]
Hardware and time: any CPU, half a minute for the default simulations. Output: memory, times, the
recommended (v, i, replay ratio) and what W = 1 to 4096 workers would do, on the console, as
plan.json and as report.html. The rule of recommendation: `ogrpo.planning.schedule`. What is given
and what is assumed: docs/planning.md.
"""

import base64
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ogrpo.files import write_json, write_text
from ogrpo.planning.config import GIB, Plan
from ogrpo.planning.memory import Budget, budgets, proposed_tokens
from ogrpo.planning.plots import save_plots
from ogrpo.planning.presets import DEVICES
from ogrpo.planning.rehearsal import compare, make_workshop, measured, read_run, rehearse
from ogrpo.planning.schedule import PlannedSchedule, Times, recommend, times
from ogrpo.planning.sweep import Point, point, sweep
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir
from ogrpo.trainer.config_json import to_json

DOES_NOT_FIT = 1
Lines = list[tuple[str, str]]


def run(plan: Plan, console: Console) -> int:
    """Plans, simulates, reports; returns 1 where something does not fit."""
    if plan.validate is not None:
        console.print(two_columns("Measured and predicted", compare(read_run(plan.validate))))
        return 0
    if plan.rehearse:
        console.print(two_columns("Measured and predicted", compare(rehearse(make_workshop(plan)))))
        return 0
    if plan.measure:
        plan = measured(make_workshop(plan))
        console.print(
            f"measured here: {plan.train.tflops:.4g} TFLOP/s in an update, "
            f"{plan.serve.tokens_per_second:.5g} completion tokens/s"
        )
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = RunDir.create(plan.run_dir or Path("runs") / f"plan-{stamp}")
    return carry_out(plan, folder, console)


def carry_out(plan: Plan, folder: RunDir, console: Console) -> int:
    """A plan whose speeds are known."""
    memory, spent = budgets(plan), times(plan)
    buffered = plan.buffer.groups // plan.batch.prompts
    chosen = recommend(spent, plan.limits, buffered=buffered)
    own = point(plan, spent, chosen, workers=plan.serve.workers, lead=chosen.lead)
    for budget in memory:
        console.print(memory_table(budget))
    if plan.preset in DEVICES:
        console.print(preset_line(plan, memory[0]), markup=False, soft_wrap=True)
    console.print(two_columns("Seconds", time_lines(plan, spent, chosen)))
    tokens = proposed_tokens(plan)
    console.print(two_columns("Recommended", schedule_lines(chosen, tokens)))
    for note in chosen.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    console.print(two_columns("Simulated", simulated_lines(own)))
    points = [*sweep(plan, spent, chosen)]
    console.print(sweep_table(points))
    write(plan, folder, memory, spent, chosen, tokens, own, points)
    console.print(f"report {folder.report}", markup=False, soft_wrap=True)
    misfits = [budget for budget in memory if not budget.fits]
    for budget in misfits:
        line = Text.assemble((f"the {budget.name} lacks memory", "red"), f": {budget.remedy}")
        console.print(line, soft_wrap=True)
    return DOES_NOT_FIT if misfits else 0


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / GIB:.2f}"


def memory_lines(budget: Budget) -> Lines:
    """What lies in one machine."""
    verdict = "fits" if budget.fits else "does not fit"
    return [
        *((name, gib(size)) for name, size in budget.rows.items()),
        ("in all", gib(budget.total)),
        (f"of {gib(budget.capacity)}", verdict),
    ]


def preset_line(plan: Plan, training: Budget) -> str:
    """Whether what is planned fits the device that the preset names, whatever was changed since."""
    gigabytes = DEVICES[plan.preset].gigabytes
    verdict = "it fits" if training.total <= gigabytes * 1e9 else "it does not fit"
    return (
        f"preset {plan.preset}: {gib(training.total)} GiB are planned on the one {gigabytes} GB "
        f"GPU that it names ({gib(gigabytes * 1e9)} GiB): {verdict}"
    )


def memory_table(budget: Budget) -> Table:
    """One machine's memory."""
    return two_columns(f"Memory of one {budget.name}, GiB", memory_lines(budget))


def time_lines(plan: Plan, spent: Times, chosen: PlannedSchedule) -> Lines:
    """Where a step's time goes."""
    return [
        ("parameters, millions", f"{plan.million_parameters:.1f}"),
        ("draw a batch", f"{spent.draw:.3g}"),
        ("one update", f"{spent.update:.3g}"),
        ("score a batch", f"{spent.score:.3g}"),
        ("push weights", f"{spent.push:.3g}"),
        ("push, a step", f"{spent.push / chosen.v:.3g}"),
        ("a step", f"{chosen.step_seconds:.3g}"),
    ]


def schedule_lines(chosen: PlannedSchedule, tokens: int | None) -> Lines:
    """What to run, and what follows; `tokens` are the most that a microbatch may have."""
    return [
        ("v", f"{chosen.v}"),
        ("i", f"{chosen.i}"),
        ("replay ratio (batches trained on for each fresh one)", f"{chosen.replay}"),
        ("batches of the buffer drawn from", f"{chosen.batches}"),
        ("updates on each fresh group", f"{chosen.updates}"),
        ("staleness, mean and most", f"{chosen.staleness_mean:g}, {chosen.staleness_max}"),
        ("trainer idle", f"{chosen.trainer_idle:.1%}"),
        ("servers idle", f"{chosen.servers_idle:.1%}"),
        ("pushes, of drawing", f"{chosen.push_share:.1%}"),
        ("optimizer.microbatch-tokens, at most", "none fits" if tokens is None else f"{tokens:,}"),
    ]


def simulated_lines(own: Point) -> Lines:
    """The recommended schedule with this plan's workers."""
    summary = own.summary
    return [
        ("workers", f"{own.workers}"),
        ("seconds a step", f"{1 / summary.steps_per_second:.3g}"),
        ("completions/s", f"{own.completions_per_second:.4g}"),
        ("trainer idle", f"{summary.trainer_idle:.1%}"),
        ("workers idle, pushes included", f"{summary.workers_idle:.1%}"),
        ("staleness", ", ".join(f"{k}: {x:.0%}" for k, x in summary.staleness_counts.items())),
    ]


def two_columns(title: str, lines: Iterable[tuple[str, str]]) -> Table:
    """Names and values."""
    table = Table(title=title, show_header=False, title_justify="left")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


SWEEP = ("line", "workers", "completions/s", "trainer idle", "workers idle", "staleness")


def sweep_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """One row for each simulation."""
    return [
        (
            p.name,
            f"{p.workers}",
            f"{p.completions_per_second:.4g}",
            f"{p.summary.trainer_idle:.1%}",
            f"{p.summary.workers_idle:.1%}",
            f"{p.summary.staleness_mean:.2f}, {p.summary.staleness_p95:g}, "
            f"{p.summary.staleness_max}",
        )
        for p in points
    ]


def sweep_table(points: Sequence[Point]) -> Table:
    """Other numbers of workers, each as fast as this plan's; staleness: mean, p95, most."""
    table = Table(title="Simulated, by number of workers", title_justify="left")
    for column in SWEEP:
        table.add_column(column, justify="right")
    for row in sweep_rows(points):
        table.add_row(*row)
    return table


def write(
    plan: Plan,
    folder: RunDir,
    memory: Sequence[Budget],
    spent: Times,
    chosen: PlannedSchedule,
    tokens: int | None,
    own: Point,
    points: Sequence[Point],
) -> None:
    """plan.json and report.html."""
    config = {"study": "plan", **to_json(replace(plan, run_dir=None))}
    folder.write_config(config)
    values = {
        "memory": {budget.name: budget.rows for budget in memory},
        "times": spent._asdict(),
        "schedule": chosen._asdict(),
        "microbatch_tokens": tokens,
        "simulated": own.record(),
        "sweep": [p.record() for p in points],
    }
    write_json(folder.path / "plan.json", values)
    plots = [
        {"name": path.stem, "data": base64.b64encode(path.read_bytes()).decode()}
        for path in save_plots(points, folder.plots)
    ]
    page = render(
        Path(__file__).with_name("plan.html.j2"),
        title="ogrpo plan",
        tables=[
            *((f"Memory of one {b.name}, GiB", memory_lines(b)) for b in memory),
            ("Seconds", time_lines(plan, spent, chosen)),
            ("Recommended", schedule_lines(chosen, tokens)),
            ("Simulated", simulated_lines(own)),
        ],
        columns=SWEEP,
        rows=sweep_rows(points),
        notes=chosen.notes,
        plots=plots,
        command=shlex.join(["ogrpo", "plan", *sys.argv[2:]]),
        config=json.dumps(config, indent=2),
    )
    write_text(folder.report, page)
