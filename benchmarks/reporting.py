"""The parts that reports of side-by-side benchmarks share: tables, figures, and the machine."""

import datetime
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]
Runs = dict[str, list[Found]]  # by system, a round each
Columns = dict[str, Callable[[Found], float]]


def heading(title: str, measured: Found) -> list[str]:
    """The title, when, where and how it was measured, and with which packages."""
    machine = measured["machine"]
    return [
        f"# {title}",
        "",
        f"- {machine['date']}, `{measured['command']}`, at commit {machine['commit']}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory']:.1f} GiB, "
        f"{machine['system']}, Python {machine['python']}, load {machine['load']:.2f} at the start",
        *(f"- {line}" for line in _versions(measured)),
        "",
    ]


def _versions(measured: Found) -> list[str]:
    """The packages of each system, settings aside."""
    named = {}
    for part in measured["shapes"].values():
        for spec, runs in part["runs"].items():
            named[spec.partition(":")[0]] = runs[0]["versions"]
    return [
        f"{system}: {', '.join(f'{name} {version}' for name, version in packages.items())}"
        for system, packages in named.items()
    ]


def figures(runs: list[Found], columns: Columns) -> list[list[float]]:
    """Returns the figures of all rounds for each column."""
    return [[read(run) for run in runs] for read in columns.values()]


def ratios(runs: Runs, spec: str, columns: Columns) -> list[list[float]]:
    """Returns ratios of the first system to another, round by round, for each column."""
    ours, theirs = figures(next(iter(runs.values())), columns), figures(runs[spec], columns)
    return [
        [a / b for a, b in zip(one, other, strict=True)]
        for one, other in zip(ours, theirs, strict=True)
    ]


def ratio_rows(runs: Runs, columns: Columns) -> list[list[str]]:
    return [[spec, *map(spread, ratios(runs, spec, columns))] for spec in list(runs)[1:]]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def spread(values: list[float]) -> str:
    shown = [_number(v) for v in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def command() -> str:
    """Returns the command line of a module that was run with -m."""
    module = Path(sys.argv[0]).relative_to(Path.cwd()).with_suffix("")
    return shlex.join(["python", "-m", ".".join(module.parts), *sys.argv[1:]])


def describe_machine() -> Found:
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.date.today().isoformat(),
        "commit": describe_commit(),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def describe_commit() -> str:
    """The checkout's short hash, with a + where files under version control were changed."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
