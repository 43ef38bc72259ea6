"""`plan`: what fits, how long a step takes, and which schedule keeps both sides busy.

Command: ogrpo plan [--model.shape qwen2.5-1.5b --serve.devices 8 ...]
Hardware and time: any CPU, half a minute for the default simulations. Output: memory, times, the
recommended (v, i, replay ratio) and what W = 1 to 4096 workers would do, on the console, as
plan.json and as report.html. The rule of recommendation: `ogrpo_plan.schedule`. What is given
and what is assumed: docs/planning.md.
"""

import base64
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ogrpo.config.values import to_json
from ogrpo.core.algorithms import gate_survival
from ogrpo.core.survival import SURVIVALS, spread_of_kl
from ogrpo.report.page import BLUE, GREEN, GREY, ORANGE, STYLE, render, save_figure
from ogrpo.report.run_dir import RunDir
from ogrpo.system.files import write_json, write_text
from ogrpo_plan.config import GIB, Plan
from ogrpo_plan.measured import compare, make_workshop, measured, read_run
from ogrpo_plan.memory import Budget, budgets, proposed_tokens
from ogrpo_plan.presets import DEVICES
from ogrpo_plan.schedule import PlannedSchedule, Times, recommend, times
from ogrpo_plan.sweep import Point, point, sweep

DOES_NOT_FIT = 1
DRAWS = 8
"""Of `--preset reuse`; what it saves in completions is in docs/reuse.md."""
KLS = (1e-4, 1e-3, 1e-2)
"""Nats a token, from engines that differ to policies that do."""
Lines = list[tuple[str, str]]
COLORS = (GREY, BLUE, ORANGE, GREEN)


def run(plan: Plan, console: Console) -> int:
    """Plans, simulates and reports; returns 1 where something does not fit."""
    if plan.validate is not None:
        console.print(two_columns("Measured and predicted", compare(read_run(plan.validate))))
        return 0
    if plan.measure:
        plan = measured(make_workshop(plan))
        console.print(
            f"measured here: {plan.train.tflops:.4g} TFLOP/s in an update, "
            f"{plan.serve.tokens_per_second:.5g} completion tokens/s"
        )
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = RunDir.create(plan.run_dir or Path("runs") / f"plan-{stamp}")
    alone = plan.preset in DEVICES and DEVICES[plan.preset].embedded
    return (carry_out_alone if alone else carry_out)(plan, folder, console)


def carry_out(plan: Plan, folder: RunDir, console: Console) -> int:
    """Prints and writes the plan of machines whose speeds are known."""
    memory, spent = budgets(plan), times(plan)
    recommended = recommend(spent, plan.limits, buffered=plan.buffer.groups // plan.batch.prompts)
    planned = point(plan, spent, recommended, workers=plan.serve.workers, lead=recommended.lead)
    tokens = proposed_tokens(plan)
    points = [*sweep(plan, spent, recommended)]
    tables = [
        *((f"Memory of one {budget.name}, GiB", memory_lines(budget)) for budget in memory),
        ("Seconds", time_lines(plan, spent, recommended)),
        ("Recommended", schedule_lines(recommended, tokens)),
        ("Simulated", simulated_lines(planned)),
        ("Kept by a gate, at .0001, .001 and .01 nats a token", gate_lines(plan)),
    ]
    for title, lines in tables[: len(memory)]:
        console.print(two_columns(title, lines))
    if plan.preset in DEVICES:
        console.print(preset_line(plan, memory[0]), markup=False, soft_wrap=True)
    seconds, schedule, simulated, kept = tables[len(memory) :]
    console.print(two_columns(*seconds))
    swept = Table(title="Simulated, by number of workers", title_justify="left")
    for column in SWEEP:
        swept.add_column(column, justify="right")
    for row in sweep_rows([p for p in points if p.lead == recommended.lead]):
        swept.add_row(*row)
    console.print(swept)
    console.print(two_columns(*simulated))
    console.print(two_columns(*kept))
    console.print(two_columns(*schedule))
    for note in recommended.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
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
    page = render(
        Path(__file__).with_name("plan.html.j2"),
        title="ogrpo plan",
        tables=tables,
        columns=SWEEP,
        rows=sweep_rows(points),
        notes=recommended.notes,
        plots=[
            {"name": path.stem, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in save_plots(points, folder.path / "plots")
        ],
        command=shlex.join(["ogrpo", "plan", *sys.argv[2:]]),
        config=json.dumps(config, indent=2),
    )
    write_text(folder.report, page)
    console.print(f"report {folder.report}", markup=False, soft_wrap=True)
    misfits = [budget for budget in memory if not budget.fits]
    for budget in misfits:
        line = Text.assemble((f"the {budget.name} lacks memory", "red"), f": {budget.remedy}")
        console.print(line, soft_wrap=True)
    console.print(verdict(recommended, planned, memory), markup=False, soft_wrap=True)
    return DOES_NOT_FIT if misfits else 0


def carry_out_alone(plan: Plan, folder: RunDir, console: Console) -> int:
    """Prints and writes the plan of one machine that draws and trains in turn.

    Its seconds are those that were measured on this one; without --measure it has none.
    """
    training, spent = budgets(plan)[0], times(plan)
    console.print(two_columns("Memory, GiB", memory_lines(training)))
    console.print(preset_line(plan, training), markup=False, soft_wrap=True)
    seconds = {"draw a batch": spent.draw, "one update": spent.update}
    seconds = {**seconds, **seconds_an_update(spent)} if plan.measure else {}
    if seconds:
        lines = [(name, f"{value:.3g}") for name, value in seconds.items()]
        console.print(two_columns("Seconds, measured here", lines))
    else:
        console.print("--measure times a call of the sampler and an update on this machine")
    folder.write_config({"study": "plan", **to_json(replace(plan, run_dir=None))})
    write_json(folder.path / "plan.json", {"memory": training.rows, "seconds": seconds})
    if training.fits:
        return 0
    console.print(Text.assemble(("it lacks memory", "red"), f": {training.remedy}"), soft_wrap=True)
    return DOES_NOT_FIT


def verdict(recommended: PlannedSchedule, planned: Point, memory: Sequence[Budget]) -> str:
    """Returns the plan in a line, which stands last on the screen."""
    misfits = [budget.name for budget in memory if not budget.fits]
    fits = f"the {' and the '.join(misfits)} lacks memory" if misfits else "all of it fits"
    return (
        f"verdict: {fits}; v = {recommended.v}, i = {recommended.i}, replay ratio"
        f" {recommended.replay}: {1 / planned.summary.steps_per_second:.3g} s a step,"
        f" {planned.completions_per_second:.4g} completions/s with {planned.workers} workers"
    )


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
    named = DEVICES[plan.preset]
    capacity = named.gigabytes * 1e9
    verdict = "it fits" if training.total <= capacity else "it does not fit"
    return (
        f"preset {plan.preset}: {gib(training.total)} GiB are planned for {named.device}, "
        f"which it names ({gib(capacity)} GiB): {verdict}"
    )


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
        *((name, f"{value:.3g}") for name, value in seconds_an_update(spent).items()),
    ]


def seconds_an_update(spent: Times) -> dict[str, float]:
    """Returns the seconds of drawing and training, in turn, for an update with and without reuse.

    With reuse a batch is drawn for each `DRAWS` updates, each of which takes as many completions.
    """
    return {
        "an update, each completion used once": spent.draw + spent.update,
        f"an update, each drawn {DRAWS} times": spent.draw / DRAWS + spent.update,
    }


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


def gate_lines(plan: Plan) -> Lines:
    """Lists what each gate of ratios would keep of completions, by KL(mu||pi) of the token."""
    batch = plan.batch
    sigma = math.sqrt(math.log1p(batch.spread**2))
    normal = jax.scipy.stats.norm.ppf((jnp.arange(64.0) + 0.5) / 64)
    lengths = jnp.clip(batch.mean_tokens * jnp.exp(sigma * normal - sigma**2 / 2), 1)
    lengths = jnp.minimum(lengths, batch.max_tokens)
    shares = [gate_survival(lengths, spread_of_kl(kl), {}, [*SURVIVALS]) for kl in KLS]
    return [(gate, ", ".join(f"{share[gate]:.1%}" for share in shares)) for gate in shares[0]]


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


def save_plots(points: Sequence[Point], folder: Path) -> list[Path]:
    """Draws throughput, idleness and staleness by the number of workers, each as a PNG.

    A line is of a lead, or of a batch that grows with the workers.
    """
    folder.mkdir(exist_ok=True)
    names = [*dict.fromkeys(p.name for p in points)]

    def draw(title: str, label: str, *curves: tuple[str, str, Callable[[Point], float]]) -> Figure:
        """Draws curves of style, legend (of the first the line's name) and value for each line."""
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("workers (calls under way at a time)")
        axes.set_ylabel(label)
        for n, name in enumerate(names):
            some = [p for p in points if p.name == name]
            for k, (style, legend, value) in enumerate(curves):
                color, text = COLORS[n % len(COLORS)], legend.format(name) if k == 0 else None
                axes.plot(
                    [p.workers for p in some], [*map(value, some)], style, label=text, color=color
                )
        for style, legend, _ in curves[1:]:
            axes.plot([], [], style, color="black", label=legend)
        axes.legend(fontsize=8)
        return figure

    with mpl.rc_context(STYLE):
        throughput = draw(
            "Throughput", "completions/s", (".-", "{}", lambda p: p.completions_per_second)
        )
        throughput.axes[0].set_yscale("log")
        idle = draw(
            *("Idle", "share of time"),
            ("-", "trainer, {}", lambda p: p.summary.trainer_idle),
            ("--", "workers", lambda p: p.summary.workers_idle),
        )
        idle.axes[0].set_ylim(-0.02, 1.02)
        staleness = draw(
            *("Staleness of fresh samples", "steps"),
            ("-", "{}, mean", lambda p: p.summary.staleness_mean),
            (":", "95th percentile", lambda p: p.summary.staleness_p95),
            ("--", "most", lambda p: p.summary.staleness_max),
        )
        staleness.axes[0].set_ylim(bottom=0)
        figures = {"throughput": throughput, "idle": idle, "staleness": staleness}
        paths = [folder / f"{name}.png" for name in figures]
        for path, figure in zip(paths, figures.values(), strict=True):
            save_figure(figure, path)
    return paths
