"""The parts that side-by-side benchmarks share: CPUs, environments, settings and reports.

A setting of a system or a shape is named on the command line, any of its fields changed:
`name:key=value,...`.
"""

import dataclasses
import datetime
import difflib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Found = dict[str, Any]
Runs = dict[str, list[Found]]  # by system, a round each
Columns = dict[str, Callable[[Found], float]]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of both benchmarks."""

    rounds: int = 5
    """Measurements of each system, one of every system in each round."""
    seconds: float = 5.0
    """A measurement lasts at least so long."""
    threads: int = 2
    """CPUs that each system may use."""
    json: Path | None = None
    """Every measurement."""
    markdown: Path | None = None
    """The report, which is printed in any case."""


def measure_shapes(
    options: Common,
    shapes: dict[str, Any],
    measure: Callable[[Any, Path], Found],
    report: Callable[[Found], str],
) -> None:
    """Measures each shape, in a folder of its own; keeps and prints what came of it."""
    measured: Found = {}
    document = {"machine": describe_machine(), "command": command(), "shapes": measured}
    for spec, shape in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            measured[spec] = {"shape": dataclasses.asdict(shape), **measure(shape, Path(folder))}
        if options.json:
            options.json.write_text(json.dumps(document, indent=1))
    text = report(document)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)


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
    # The short hash, with a + where files under version control were changed.
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "commit": done.stdout.strip() or "unknown",
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def on_cpus(threads: int) -> list[str]:
    """Returns the words before a command that bind it to the first so many of our CPUs."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    if len(cpus) < threads:
        raise ValueError(f"--threads is {threads}, but there are {len(cpus)} CPUs")
    return ["taskset", "--cpu-list", ",".join(map(str, cpus))]


def python_with(folder: Path, name: str, packages: tuple[str, ...]) -> str:
    """Returns the interpreter of an environment with these packages, made by this Python."""
    digest = hashlib.sha256("\n".join((sys.version, *packages)).encode()).hexdigest()
    return made(folder, name, digest, sys.executable, packages)


def made(folder: Path, name: str, digest: str, base: str, packages: tuple[str, ...]) -> str:
    """Returns the interpreter of environment NAME-DIGEST, made by `base` if not complete."""
    short = digest[:12]
    home = folder / f"{name}-{short}"
    python, marker = home / "bin" / "python", home / ".complete"
    if not marker.is_file() or marker.read_text().strip() != short:
        shutil.rmtree(home, ignore_errors=True)
        print(f"making {home}", file=sys.stderr)
        subprocess.run([base, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        marker.write_text(short)
    return str(python)


def parse(spec: str, known: dict[str, Any]) -> tuple[str, Any]:
    """Reads `name:key=value,...` as the name and its entry with those fields replaced."""
    name, _, rest = spec.partition(":")
    if name not in known:
        raise ValueError(f"there is no {name!r}: choose {', '.join(known)}")
    pairs = [part.partition("=")[::2] for part in rest.split(",") if part]
    changes = {key: _read(spec, key, value, known[name]) for key, value in pairs}
    return name, dataclasses.replace(known[name], **changes)


def _read(spec: str, key: str, value: str, default: Any) -> Any:
    fields = vars(default)
    if key not in fields:
        near = difflib.get_close_matches(key, fields, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{spec}: there is no {key!r}; {hint}it has {', '.join(fields)}")
    if isinstance(fields[key], bool):
        if value not in ("true", "false"):
            raise ValueError(f"{spec}: {key} is {value!r}: give true or false")
        return value == "true"
    return type(fields[key])(value)
