"""The parts that the side-by-side benchmarks share: workers, environments, settings, the report.

A setting of a system or a shape is named on the command line, any of its fields changed:
`name:key=value,...`. Workers are the scripts in this folder whose names end in a system's.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import table
from benchmarks.side_by_side.worker import peak
from ogrpo.system.terminal import nearest

Figures = dict[str, Any]
Runs = dict[str, list[Figures]]  # by system, a round each
Columns = dict[str, Callable[[Figures], float]]

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")


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


@dataclass(frozen=True)
class Report:
    """The text around the figures, and what they are.

    Attributes:
      title: of the whole.
      note: how to read the figures.
      figures: columns of each shape's first table, a row a system.
      ratios: columns of its second, of the first system's figures to each other's.
      more: lines behind these, of what was measured at a shape.
    """

    title: str
    note: str
    figures: Columns
    ratios: Columns
    more: Callable[[Figures], list[str]]

    def text(self, measured: Figures) -> str:
        """Returns the report in Markdown."""
        lines = [*heading(self.title, measured), self.note]
        for name, part in measured["shapes"].items():
            runs = part["runs"]
            first = next(iter(runs))
            fields = (f"{key.replace('_', ' ')} {value}" for key, value in part["shape"].items())
            lines += [
                "",
                f"## {name}",
                "",
                f"{', '.join(fields)}; {len(runs[first])} rounds.",
                "",
                *table(["system", *self.figures], figure_rows(runs, self.figures)),
                "",
                f"{first} divided by each, median of the rounds' ratios (least to greatest):",
                "",
                *table(["system", *self.ratios], ratio_rows(runs, self.ratios)),
                *self.more(part),
            ]
        return "\n".join(lines) + "\n"


def measure_shapes(
    options: Common, shapes: dict[str, Any], measure: Callable[[Any, Path], Figures], report: Report
) -> None:
    """Measures each shape, in a folder of its own; keeps and prints what came of it."""
    measured: Figures = {}
    module = Path(sys.argv[0]).relative_to(Path.cwd()).with_suffix("")
    command = shlex.join(["python", "-m", ".".join(module.parts), *sys.argv[1:]])
    document = {"machine": describe_machine(), "command": command, "shapes": measured}
    for spec, shape in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            measured[spec] = {"shape": dataclasses.asdict(shape), **measure(shape, Path(folder))}
        if options.json:
            options.json.write_text(json.dumps(document, indent=1))
    print(report.text(document))


class Worker:
    """A worker with its children, in a session of its own, on the first so many CPUs.

    It ends with the `with` statement.
    """

    def __init__(
        self, name: str, python: str, job: Figures, folder: Path, threads: int, **environment: str
    ) -> None:
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        if len(cpus) < threads:
            raise ValueError(f"--threads is {threads}, but there are {len(cpus)} CPUs")
        bound = ["taskset", "--cpu-list", ",".join(map(str, cpus))]
        self._log = folder / f"{name}.log"
        job = {**job, "folder": str(folder), "threads": threads}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*bound, python, str(HERE / f"{name}.py"), json.dumps(job)],
                env={
                    **os.environ,
                    "JAX_PLATFORMS": "cpu",
                    "OMP_NUM_THREADS": str(threads),
                    **environment,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:  # which closes its pipes and waits
            os.killpg(self._process.pid, signal.SIGKILL)

    def answer(self) -> Any:
        """Returns its next answer; what libraries print while they are imported is passed over.

        Raises:
          RuntimeError: it ended without one; has its last words.
        """
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, ""):
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the worker ended:\n{self._log.read_text()[-4000:]}")

    def ask(self, **request: float) -> Figures:
        """Returns what it answers, with CPU seconds and peak memory (MiB) of all its processes."""
        assert self._process.stdin is not None
        before = self._cpu_seconds()
        print(json.dumps(request), file=self._process.stdin, flush=True)
        reply = self.answer()
        spent = self._cpu_seconds() - before
        # Pages that are shared count twice.
        return {**reply, "cpu": spent, "peak": sum(peak(pid) for pid, _ in self._members())}

    def _cpu_seconds(self) -> float:
        """User and system time of its processes, and of those that they have waited for."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self._members()) / TICK

    def _members(self) -> list[tuple[str, list[str]]]:
        """Process ids of the session, with the fields of /proc/PID/stat from the state on."""
        members = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[3]) == self._process.pid:
                members.append((stat.parent.name, fields))
        return members


def heading(title: str, measured: Figures) -> list[str]:
    """The title, when, where and how it was measured, and with which packages."""
    machine, packages = measured["machine"], {}
    for part in measured["shapes"].values():
        for spec, runs in part["runs"].items():
            packages[spec.partition(":")[0]] = runs[0]["versions"]
    return [
        f"# {title}",
        "",
        f"- {machine['date']}, `{measured['command']}`, at commit {machine['commit']}",
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory']:.1f} GiB, "
        f"{machine['system']}, Python {machine['python']}, load {machine['load']:.2f} at the start",
        *(
            f"- {system}: {', '.join(f'{name} {version}' for name, version in versions.items())}"
            for system, versions in packages.items()
        ),
        "",
    ]


def figure_rows(runs: Runs, columns: Columns) -> list[list[str]]:
    """Returns a row for each system, with its figures over the rounds."""
    return [
        [spec, *(spread([read(run) for run in of]) for read in columns.values())]
        for spec, of in runs.items()
    ]


def ratio_rows(runs: Runs, columns: Columns) -> list[list[str]]:
    """Returns a row for each system but the first: that one's figures over its own, by round."""
    (_, first), *others = runs.items()

    def ratio(of: list[Figures], read: Callable[[Figures], float]) -> str:
        return spread([read(a) / read(b) for a, b in zip(first, of, strict=True)])

    return [[spec, *(ratio(of, read) for read in columns.values())] for spec, of in others]


def spread(values: list[float]) -> str:
    """Returns the median, with the least and the greatest."""
    shown = [
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        for value in (statistics.median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def describe_machine() -> Figures:
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    # The short hash, with a + where files under version control were changed.
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
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
        hint = nearest(key, fields, "did you mean {!r}? ")
        raise ValueError(f"{spec}: there is no {key!r}; {hint}it has {', '.join(fields)}")
    if isinstance(fields[key], bool):
        if value not in ("true", "false"):
            raise ValueError(f"{spec}: {key} is {value!r}: give true or false")
        return value == "true"
    return type(fields[key])(value)
