"""The measurements as a markdown report."""

import datetime
import os
import platform
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

Found = dict[str, Any]

COLUMNS = {
    "tokens / CPU-s": lambda run: run["tokens"] / run["cpu"],
    "tokens / s": lambda run: run["tokens"] / run["wall"],
    "peak MiB": lambda run: run["peak"],
}


def report(found: Found) -> str:
    """Settings, then for each shape its figures and ratios."""
    machine = found["machine"]
    lines = [
        "# The embedded sampler, side by side",
        "",
        f"- {machine['date']}, `python {found['command']}`, at commit {machine['commit']}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory']:.1f} GiB, "
        f"{machine['system']}, Python {machine['python']}, load {machine['load']:.2f} at the start",
        *(f"- {line}" for line in versions(found)),
        "",
        "Medians over rounds (least to greatest). CPU seconds are of all processes of an engine,"
        " user and system; the peak of resident memory is since its start.",
    ]
    for name, part in found["shapes"].items():
        lines += ["", *shape_lines(name, part["shape"], part["runs"])]
    return "\n".join(lines) + "\n"


def shape_lines(name: str, shape: Found, runs: Found) -> list[str]:
    first = next(iter(runs))
    counts = ", ".join(f"{key} {value}" for key, value in shape.items())
    rows = shape["prompts"] * shape["group"]
    table_rows = [
        [engine, *map(spread, columns(of)), f"{mean_length(of, rows):.1f}"]
        for engine, of in runs.items()
    ]
    return [
        f"## {name}",
        "",
        f"{counts}; {len(runs[first])} rounds.",
        "",
        *table(["engine", *COLUMNS, "tokens / completion"], table_rows),
        "",
        f"{first} divided by each, median of the rounds' ratios (least to greatest):",
        "",
        *table(["engine", *COLUMNS], ratio_rows(runs)),
    ]


def columns(runs: list[Found]) -> list[list[float]]:
    return [[read(run) for run in runs] for read in COLUMNS.values()]


def ratio_rows(runs: Found) -> list[list[str]]:
    """Of the first engine to each other, round by round, for each column."""
    ours, *others = (columns(of) for of in runs.values())
    return [
        [
            name,
            *(
                spread([a / b for a, b in zip(*pair, strict=True)])
                for pair in zip(ours, theirs, strict=True)
            ),
        ]
        for name, theirs in zip(list(runs)[1:], others, strict=True)
    ]


def mean_length(runs: list[Found], rows: int) -> float:
    return sum(run["tokens"] for run in runs) / sum(run["calls"] * rows for run in runs)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def spread(values: list[float]) -> str:
    shown = [_number(v) for v in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def versions(found: Found) -> list[str]:
    """The packages of each engine, by their names there."""
    named = {}
    for part in found["shapes"].values():
        for engine, runs in part["runs"].items():
            named[engine] = runs[0]["versions"]
    return [
        f"{engine}: {', '.join(f'{name} {v}' for name, v in packages.items())}"
        for engine, packages in named.items()
    ]


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
