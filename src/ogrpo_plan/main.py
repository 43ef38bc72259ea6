"""`plan`: what fits, and how long a step takes.

Command: ogrpo plan --preset NAME, or with the options of a run [--serve.devices 8 ...]
Hardware and time: any CPU, seconds. Output: memory and times, on the console and as plan.json.
What is counted and what is assumed: docs/planning.md.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ogrpo.policy.flops import parameters
from ogrpo.report.run_dir import RunDir
from ogrpo.system.files import write_json
from ogrpo.system.values import to_json
from ogrpo_plan.config import DEVICES, GIB, Plan, check_plan
from ogrpo_plan.memory import proposed_tokens, serve_budget, train_budget
from ogrpo_plan.times import measured, times

DOES_NOT_FIT = 1


def run(plan: Plan, console: Console) -> int:
    """Prints and writes the plan; returns 1 where something does not fit.

    One machine that draws and trains in turn has no servers, and seconds only with --measure.

    Raises:
      ValueError: as `check_plan`.
    """
    check_plan(plan)
    if plan.measure:
        plan = measured(plan)
        console.print(
            f"measured here: {plan.train.tflops:.4g} TFLOP/s in an update, "
            f"{plan.serve.tokens_per_second:.5g} completion tokens/s"
        )
    folder = RunDir.create(plan.run_dir or Path("runs") / f"plan-{datetime.now():%Y%m%d-%H%M%S}")
    named = DEVICES.get(plan.preset)
    alone = named is not None and named.embedded
    memory = [train_budget(plan)] if alone else [train_budget(plan), serve_budget(plan)]
    tokens = proposed_tokens(plan)
    for budget in memory:
        fits = "fits" if budget.fits else "does not fit"
        rows = [
            *((name, gib(size)) for name, size in budget.rows.items()),
            ("in all", gib(budget.total)),
            (f"of {gib(budget.capacity)}", fits),
        ]
        if budget.name == "training device":
            most = "none fits" if tokens is None else f"{tokens:,}"
            rows.append(("optimizer.microbatch-tokens, at most", most))
        console.print(two_columns(f"Memory of one {budget.name}, GiB", rows))
    if named is not None:
        capacity, planned = named.gigabytes * 1e9, memory[0].total
        line = (
            f"preset {plan.preset}: {gib(planned)} GiB are planned for {named.device}, which it"
            f" names ({gib(capacity)} GiB): it {'fits' if planned <= capacity else 'does not fit'}"
        )
        console.print(line, markup=False, soft_wrap=True)
    seconds = times(plan) if plan.measure or not alone else {}
    if seconds:
        title = f"Seconds, of {parameters(plan.decoder()) / 1e6:.1f} million parameters"
        rows = [(name, f"{value:.3g}") for name, value in seconds.items()]
        console.print(two_columns(title, rows))
    else:
        console.print("--measure times a call of the sampler and an update on this machine")
    folder.write_config({"study": "plan", "options": to_json(replace(plan, run_dir=None))})
    sizes = {budget.name: budget.rows for budget in memory}
    values = {"memory": sizes, "microbatch_tokens": tokens, "seconds": seconds}
    write_json(folder.path / "plan.json", values)
    misfits = [budget for budget in memory if not budget.fits]
    for budget in misfits:
        line = Text.assemble((f"the {budget.name} lacks memory", "red"), f": {budget.remedy}")
        console.print(line, soft_wrap=True)
    lacking = " and the ".join(budget.name for budget in misfits)
    verdict = f"the {lacking} lacks memory" if misfits else "all of it fits"
    if seconds:
        completions = plan.schedule.prompts * plan.rollout.group_size / seconds["a step"]
        verdict += f"; {seconds['a step']:.3g} s a step, {completions:.4g} completions/s"
    console.print(f"verdict: {verdict}", markup=False, soft_wrap=True)
    return DOES_NOT_FIT if misfits else 0


def gib(size: float) -> str:
    """Formats bytes in GiB."""
    return f"{size / GIB:.2f}"


def two_columns(title: str, lines: Iterable[tuple[str, str]]) -> Table:
    """Draws names and values as a table."""
    table = Table(title=title, show_header=False, title_justify="left")
    for line in lines:
        table.add_row(*map(Text, line))
    return table
