r"""Scores of presets and settings over seeds: mean and standard error, before and after training.

    python -m benchmarks.presets --presets v10-i1 --split validation --seeds 20 21 22 \
        --grid "--optimizer.learning-rate 3e-4" "--optimizer.learning-rate 5e-4" --out runs/grid
    python -m benchmarks.presets --presets v10-i1 v1-i1 --seeds 30 31 32 33 34 --out runs/table

The first chooses a setting, the second reports on problems and seeds that no choice has seen.

Every run is `python -m experiments.run gsm8k` in a process and a folder of its own. A run that
ended leaves a row in OUT/rows.jsonl and is not done again; one that was cut short begins anew. Only
one of these commands may write into a folder at a time; `--jobs` runs several runs at once.
"""

import argparse
import hashlib
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reporting import describe_commit, table

ROOT = Path(__file__).parents[1]
OURS = ("--preset", "--seed", "--evaluation.split", "--run-dir", "--resume")
DEFAULT = "default"
Row = dict[str, Any]


class Setting(NamedTuple):
    """A line of the table: a preset, and the options that change it."""

    preset: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        shown = [f"`{self.preset}`", *([f"`{shlex.join(self.options)}`"] if self.options else [])]
        return " ".join(shown)


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: Setting
    seed: int
    split: str

    @property
    def key(self) -> tuple[str, tuple[str, ...], int, str]:
        return self.setting.preset, self.setting.options, self.seed, self.split

    def folder(self, out: Path) -> Path:
        """Where its process writes; options are told apart by a hash."""
        options = json.dumps(self.setting.options)
        mark = f"-{hashlib.sha256(options.encode()).hexdigest()[:8]}" * bool(self.setting.options)
        return out / "runs" / f"{self.setting.preset}{mark}-{self.split}-{self.seed}"

    def command(self, out: Path) -> list[str]:
        preset = [] if self.setting.preset == DEFAULT else ["--preset", self.setting.preset]
        own = ["--seed", str(self.seed), "--evaluation.split", self.split]
        place = ["--run-dir", str(self.folder(out).resolve())]
        study = [sys.executable, "-m", "experiments.run", "gsm8k"]
        return [*study, *preset, *own, *place, *self.setting.options]


class Failed(RuntimeError):
    """A run's process did not end well; its last lines are the message."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.presets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--presets", nargs="+", default=[DEFAULT], help="by name, or 'default'")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--out", type=Path, required=True, help="a folder; gone on with if there")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--set",
        default="",
        metavar="OPTIONS",
        help="options of every run, in one string: --set '--schedule.steps 120'",
    )
    parser.add_argument(
        "--grid",
        nargs="+",
        default=[""],
        metavar="OPTIONS",
        help="settings to try, a string each; '' is the preset as it is. A string that is one word "
        "needs a blank before it: ' --reuse.adaptive'",
    )
    wanted = parser.parse_args(arguments)
    if wanted.jobs < 1:
        parser.error(f"--jobs is {wanted.jobs}: give at least 1")
    for word in map(str, shlex.split(" ".join([wanted.set, *wanted.grid]))):
        name = word.partition("=")[0].replace("_", "-")
        if name in OURS:
            parser.error(
                f"{name} is given to each run by this command: leave it out of its options"
            )
    return wanted


def settings_of(wanted: argparse.Namespace) -> list[Setting]:
    """Every preset with every entry of the grid."""
    common = shlex.split(wanted.set)
    made = [
        Setting(preset, (*common, *shlex.split(entry)))
        for preset in wanted.presets
        for entry in wanted.grid
    ]
    return list(dict.fromkeys(made))


def runs_of(wanted: argparse.Namespace) -> list[Run]:
    """All runs, seed by seed, so that a table of fewer seeds is there early."""
    seeds = dict.fromkeys(wanted.seeds)
    return [Run(s, seed, wanted.split) for seed in seeds for s in settings_of(wanted)]


def key_of(row: Row) -> tuple[str, tuple[str, ...], int, str]:
    return row["preset"], tuple(row["options"]), row["seed"], row["split"]


def read_rows(out: Path) -> list[Row]:
    """The rows of all runs that ended; a last line that a crash cut off is left out."""
    file = out / "rows.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write_row(out: Path, row: Row) -> None:
    """Adds a row, in place of one that a crash cut off."""
    kept = "".join(f"{json.dumps(known)}\n" for known in [*read_rows(out), row])
    scratch = out / "rows.tmp"
    scratch.write_text(kept)
    scratch.replace(out / "rows.jsonl")


def carry_out(run: Run, out: Path) -> Row:
    """The row of a run, after its process has ended."""
    folder = run.folder(out)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut short
    folder.parent.mkdir(parents=True, exist_ok=True)
    command, begin = run.command(out), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-12:])
        raise Failed(f"{shlex.join(command)}\nended with {done.returncode}:\n{last}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {
        "preset": run.setting.preset,
        "options": list(run.setting.options),
        "seed": run.seed,
        "split": run.split,
        **scores([json.loads(line) for line in lines]),
        "seconds": round(seconds, 1),
        "jax": version("jax"),
        "revision": describe_commit(),
        "date": date.today().isoformat(),
    }


def scores(records: Sequence[Row]) -> Row:
    """What a run reached and spent: all Pass@k of its first and last evaluation."""
    evaluated = [r for r in records if r["pass@1/sampled"] is not None]
    first, last = (
        {key: value for key, value in r.items() if key.startswith("pass@")}
        for r in (evaluated[0], evaluated[-1])
    )
    spent = {name: records[-1][name] for name in ("completions", "updates")}
    return {"before": first, "after": last, **spent}


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and its standard error; one value has none."""
    if len(values) < 2:
        return statistics.fmean(values), None
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def cell(values: Sequence[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def metrics_of(rows: Iterable[Row]) -> dict[str, str]:
    """Keys of the scores that all rows have, with their headings."""
    shared = set.intersection(*(set(row["after"]) & set(row["before"]) for row in rows))
    names = {"pass@1/sampled": "sampled", "pass@1/greedy": "greedy"}
    more = sorted(key for key in shared if key.endswith("/sampled") and key not in names)
    return {**names, **{key: key.removesuffix("/sampled").replace("p", "P", 1) for key in more}}


def summary(wanted: argparse.Namespace, rows: Sequence[Row]) -> list[str]:
    """The table of the wanted settings, over those of the wanted seeds that have ended."""
    keys = {run.key for run in runs_of(wanted)}
    chosen = [row for row in rows if key_of(row) in keys]
    if not chosen:
        return ["no run has ended yet"]
    metrics = metrics_of(chosen)
    sides = [f"{name}, {side}" for name in metrics.values() for side in ("before", "after")]
    head = ["setting", "seeds", *sides, "completions", "updates", "s a run"]
    lines = [
        line(setting, mine, metrics)
        for setting in settings_of(wanted)
        if (mine := [row for row in chosen if key_of(row)[:2] == setting])
    ]
    return [*table(head, lines), "", *notes(wanted, chosen, rows)]


def line(setting: Setting, rows: Sequence[Row], metrics: Iterable[str]) -> list[str]:
    found = [
        cell([row[side][key] for row in rows]) for key in metrics for side in ("before", "after")
    ]
    spent = [statistics.fmean(row[name] for row in rows) for name in ("completions", "updates")]
    seconds = statistics.fmean(row["seconds"] for row in rows)
    seeds = " ".join(str(row["seed"]) for row in sorted(rows, key=lambda row: row["seed"]))
    return [str(setting), seeds, *found, *(f"{n:,.0f}" for n in spent), f"{seconds:.0f}"]


def notes(wanted: argparse.Namespace, chosen: Sequence[Row], rows: Sequence[Row]) -> Iterator[str]:
    """What a reader must know beside the table."""
    tried = {key_of(row)[:2] for row in rows if row["split"] == wanted.split}
    made = {name: ", ".join(sorted({row[name] for row in chosen})) for name in ("jax", "revision")}
    yield (
        f"Mean ± standard error over seeds, split `{wanted.split}`; jax {made['jax']}, commit "
        f"{made['revision']}; settings tried on this split in {wanted.out}: {len(tried)}."
    )
    missing = len(runs_of(wanted)) - len(chosen)
    if missing:
        yield f"{missing} of {len(runs_of(wanted))} runs have not ended."


def main(arguments: Sequence[str]) -> int:
    """Does the runs that are missing, prints the table, and returns 1 if a run failed."""
    wanted = parse(arguments)
    wanted.out.mkdir(parents=True, exist_ok=True)
    done = {key_of(row) for row in read_rows(wanted.out)}
    missing = [run for run in runs_of(wanted) if run.key not in done]
    failures = 0
    pool = ThreadPoolExecutor(wanted.jobs)
    try:
        started: dict[Future[Row], Run] = {
            pool.submit(carry_out, run, wanted.out): run for run in missing
        }
        for n, future in enumerate(as_completed(started), start=1):
            run = started[future]
            try:
                write_row(wanted.out, row := future.result())
            except Failed as error:
                failures += 1
                print(f"{n}/{len(missing)} FAILED: {error}", file=sys.stderr, flush=True)
            else:
                text = f"{row['after']['pass@1/sampled']:.3f} in {row['seconds']:.0f} s"
                print(f"{n}/{len(missing)} {run.setting}, seed {run.seed}: {text}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    print("\n".join(["", *summary(wanted, read_rows(wanted.out))]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
