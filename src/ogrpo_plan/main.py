"""`plan`: what fits, how long a step takes, and which schedule keeps both sides busy.

Command: ogrpo plan [--model.shape qwen2.5-1.5b --serve.devices 8 ...]
Hardware and time: any CPU, half a minute for the default simulations. Output: memory, times, the
recommended (v, i, replay ratio) and what W = 1 to 4096 workers would do, on the console, as
plan.json and as report.html. The rule of recommendation: `ogrpo_plan.schedule`. What is given
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

from ogrpo.config.values import to_json
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir
from ogrpo.system.files import write_json, write_text
from ogrpo_plan.config import GIB, Plan
from ogrpo_plan.memory import Budget, budgets, proposed_tokens
from ogrpo_plan.plots import save_plots
from ogrpo_plan.presets import DEVICES
from ogrpo_plan.rehearsal import compare, make_workshop, measured, read_run, rehearse
from ogrpo_plan.schedule import PlannedSchedule, Times, recommend, times
from ogrpo_plan.sweep import Point, point, sweep

DOES_NOT_FIT = 1
Lines = list[tuple[str, str]]


def run(plan: Plan, console: Console) -> int:
    """Plans, simulates and reports; returns 1 where something does not fit."""
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
    """Prints and writes the plan of machines whose speeds are known."""
    memory, spent = budgets(plan), times(plan)
    buffered = plan.buffer.groups // plan.batch.prompts
    recommended = recommend(spent, plan.limits, buffered=buffered)
    planned = point(plan, spent, recommended, workers=plan.serve.workers, lead=recommended.lead)
    for budget in memory:
        console.print(memory_table(budget))
    if plan.preset in DEVICES:
        console.print(preset_line(plan, memory[0]), markup=False, soft_wrap=True)
    console.print(two_columns("Seconds", time_lines(plan, spent, recommended)))
    tokens = proposed_tokens(plan)
    points = [*sweep(plan, spent, recommended)]
    console.print(sweep_table(points))
    console.print(two_columns("Simulated", simulated_lines(planned)))
    console.print(two_columns("Recommended", schedule_lines(recommended, tokens)))
    for note in recommended.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    write(plan, folder, memory, spent, recommended, tokens, planned, points)
    console.print(f"report {folder.report}", markup=False, soft_wrap=True)
    misfits = [budget for budget in memory if not budget.fits]
    for budget in misfits:
        line = Text.assemble((f"the {budget.name} lacks memory", "red"), f": {budget.remedy}")
        console.print(line, soft_wrap=True)
    return DOES_NOT_FIT if misfits else 0


def gib(size: float) -> str:
    """Formats bytes in GiB."""
    return f"{size / GIB:.2f}"


def memory_lines(budget: Budget) -> Lines:
    """Lists what lies in one machine's memory, the sum, and whether it fits."""
    verdict = "fits" if budget.fits else "does not fit"
    return [
        *((name, gib(size)) for name, size in budget.rows.items()),
        ("in all", gib(budget.total)),
        (f"of {gib(budget.capacity)}", verdict),
    ]


def preset_line(plan: Plan, training: Budget) -> str:
    """Says whether the plan fits the device that its preset names."""
    gigabytes = DEVICES[plan.preset].gigabytes
    verdict = "it fits" if training.total <= gigabytes * 1e9 else "it does not fit"
    return (
        f"preset {plan.preset}: {gib(training.total)} GiB are planned on the one {gigabytes} GB "
        f"GPU that it names ({gib(gigabytes * 1e9)} GiB): {verdict}"
    )


def memory_table(budget: Budget) -> Table:
    """Draws one machine's memory as a table."""
    return two_columns(f"Memory of one {budget.name}, GiB", memory_lines(budget))


def time_lines(plan: Plan, spent: Times, recommended: PlannedSchedule) -> Lines:
    """Lists where a step's time goes, in seconds."""
    return [
        ("parameters, millions", f"{plan.million_parameters:.1f}"),
        ("draw a batch", f"{spent.draw:.3g}"),
        ("one update", f"{spent.update:.3g}"),
        ("score a batch", f"{spent.score:.3g}"),
        ("push weights", f"{spent.push:.3g}"),
        ("push, a step", f"{spent.push / recommended.v:.3g}"),
        ("a step", f"{recommended.step_seconds:.3g}"),
    ]


def schedule_lines(recommended: PlannedSchedule, tokens: int | None) -> Lines:
    """Lists the recommended schedule; `tokens` is the most that a microbatch may have."""
    return [
        ("v", f"{recommended.v}"),
        ("i", f"{recommended.i}"),
        ("replay ratio (batches trained on for each fresh one)", f"{recommended.replay}"),
        ("batches of the buffer drawn from", f"{recommended.batches}"),
        ("updates on each fresh group", f"{recommended.updates}"),
        (
            "staleness, mean and most",
            f"{recommended.staleness_mean:g}, {recommended.staleness_max}",
        ),
        ("trainer idle", f"{recommended.trainer_idle:.1%}"),
        ("servers idle", f"{recommended.servers_idle:.1%}"),
        ("pushes, of drawing", f"{recommended.push_share:.1%}"),
        ("optimizer.microbatch-tokens, at most", "none fits" if tokens is None else f"{tokens:,}"),
    ]


def simulated_lines(planned: Point) -> Lines:
    """Lists what the recommended schedule does with this plan's workers."""
    summary = planned.summary
    return [
        ("workers", f"{planned.workers}"),
        ("seconds a step", f"{1 / summary.steps_per_second:.3g}"),
        ("completions/s", f"{planned.completions_per_second:.4g}"),
        ("trainer idle", f"{summary.trainer_idle:.1%}"),
        ("workers idle, pushes included", f"{summary.workers_idle:.1%}"),
        ("staleness", ", ".join(f"{k}: {x:.0%}" for k, x in summary.staleness_counts.items())),
    ]


def two_columns(title: str, lines: Iterable[tuple[str, str]]) -> Table:
    """Draws names and values as a table."""
    table = Table(title=title, show_header=False, title_justify="left")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


SWEEP = ("line", "workers", "completions/s", "trainer idle", "workers idle", "staleness")


def sweep_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Formats one row for each simulation."""
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
    """Draws other numbers of workers, each as fast as this plan's."""
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
    recommended: PlannedSchedule,
    tokens: int | None,
    planned: Point,
    points: Sequence[Point],
) -> None:
    """Writes plan.json and report.html."""
    config = {"study": "plan", **to_json(replace(plan, run_dir=None))}
    folder.write_config(config)
    values = {
        "memory": {budget.name: budget.rows for budget in memory},
        "times": spent._asdict(),
        "schedule": recommended._asdict(),
        "microbatch_tokens": tokens,
        "simulated": planned.record(),
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
            ("Seconds", time_lines(plan, spent, recommended)),
            ("Recommended", schedule_lines(recommended, tokens)),
            ("Simulated", simulated_lines(planned)),
        ],
        columns=SWEEP,
        rows=sweep_rows(points),
        notes=recommended.notes,
        plots=plots,
        command=shlex.join(["ogrpo", "plan", *sys.argv[2:]]),
        config=json.dumps(config, indent=2),
    )
    write_text(folder.report, page)
