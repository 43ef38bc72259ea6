"""Any trainer's command, killed with SIGKILL and resumed until done, beside the same undisturbed.

    python -m benchmarks.reliability --command 'python train.py --out {run}' \
        --resume 'python train.py --out {run} --resume' --metrics '{run}/metrics.jsonl'

`{run}` is a fresh folder of each run. A kill falls a moment after a record that is drawn by its
number, or at a moment drawn over the undisturbed life, and takes the whole process group. The
resumed run's records, one JSON object a line with `step`, of which the last of a step counts, are
compared with the undisturbed one's to the bit, except for names that measure time.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.chaos.compare import record_differences
from benchmarks.chaos.kills import LONGEST, Life, Plan, show, until_done
from benchmarks.rows import read_rows


class Trainer(NamedTuple):
    """The commands of a trainer, and where its records are; `{run}` stands for a run's folder."""

    command: str
    resume: str
    metrics: str
    ignore: tuple[str, ...] = ()
    """Parts of the names of figures that may differ."""

    def records(self, run: Path) -> Path:
        """Returns the file of a run's records."""
        return Path(self.metrics.replace("{run}", str(run)))

    def last_records(self, run: Path) -> list[dict[str, Any]]:
        """Returns the last record of each step: a step that a kill undid is recorded twice."""
        return [*{record["step"]: record for record in read_rows(self.records(run))}.values()]


def live(command: str, run: Path, records: Path, *, kill: tuple[int, float] | None = None) -> Life:
    """Starts a command and waits for its end.

    Args:
      command: of a shell.
      run: the run's folder; what is printed goes into a log beside it.
      records: the file whose lines are counted.
      kill: SIGKILL so many seconds after the file has so many lines; from the start for 0 lines.

    Raises:
      TimeoutError: it does not end.
    """
    begun, reached = time.monotonic(), None
    with run.with_suffix(".log").open("ab") as log:
        words = command.replace("{run}", str(run))
        process = subprocess.Popen(
            words, shell=True, stdout=log, stderr=log, start_new_session=True
        )
        try:
            while process.poll() is None:
                now = time.monotonic()
                if now - begun > LONGEST:
                    raise TimeoutError(f"{words} runs for {LONGEST:.0f} s: give a shorter one")
                if kill is not None and reached is None and count_lines(records) >= kill[0]:
                    reached = now
                if kill is not None and reached is not None and now >= reached + kill[1]:
                    os.killpg(process.pid, signal.SIGKILL)
                    kill = None
                time.sleep(0.002)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    output = run.with_suffix(".log").read_text()
    return Life(process.returncode, time.monotonic() - begun, output=output)


def count_lines(file: Path) -> int:
    """Counts the lines of a file; none where it is not there."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def disturbed(trainer: Trainer, run: Path, plans: Sequence[Plan], whole: Life, steps: int) -> str:
    """Kills a run as planned and resumes it until done; returns what went wrong, "" if nothing."""
    records = trainer.records(run)

    def start(resume: bool, plan: Plan | None) -> Life:
        kill, lines = None, count_lines(records)
        if plan is not None and plan.at_write:  # of the records that this life is to add
            kill = (lines + max(1, int(plan.share * (steps - lines))), plan.delay)
        elif plan is not None:
            kill = (0, plan.share * whole.seconds)
        resume = resume and records.exists() and records.stat().st_size > 0
        return live(trainer.resume if resume else trainer.command, run, records, kill=kill)

    return until_done(start, plans)[1]


def compared(trainer: Trainer, run: Path, expected: list[dict[str, Any]]) -> list[str]:
    """Returns what a run's records differ in from those expected, without what is ignored."""
    try:
        records = trainer.last_records(run)
    except json.JSONDecodeError as error:
        return [f"{trainer.records(run)} has half of a line, as a kill leaves it: {error}"]
    lines = record_differences(records, expected)
    return [line for line in lines if not any(name in line for name in trainer.ignore)]


def study(trainer: Trainer, *, runs: int, seed: int) -> int:
    """Kills runs up to three times, resumes and compares them; returns how many differ."""
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    reference = scratch / "whole"
    whole = live(trainer.command, reference, trainer.records(reference))
    if whole.code:
        output = whole.output[-2000:]
        raise SystemExit(f"the command ended with {whole.code} undisturbed:\n{output}")
    expected = trainer.last_records(reference)
    print(f"undisturbed: {len(expected)} records in {whole.seconds:.1f} s, {scratch}", flush=True)
    differ = 0
    for number in range(runs):
        rng = np.random.default_rng([seed, number])
        plans = [Plan.draw(rng) for _ in range(int(rng.integers(1, 4)))]
        run = scratch / str(number)
        failure = disturbed(trainer, run, plans, whole, len(expected))
        wrong = [failure] if failure else compared(trainer, run, expected)
        differ += bool(wrong)
        show(number, f"{len(plans)} kills", wrong)
    return differ
