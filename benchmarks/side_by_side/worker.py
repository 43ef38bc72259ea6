"""A worker's side: the job that comes in, the figures that go out, and the clock between.

A worker is one process, of ogrpo or of a peer whose environment has neither ogrpo nor this
package: it is run as a script, and imports what stands beside it.
"""

import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

MIB = 2**10  # of /proc's kB


class Job:
    """The job from the harness; made first thing after a worker's imports."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = json.loads(sys.argv[1])
        self.footprint = peak()
        self.shape: Any = SimpleNamespace(**self.fields["shape"])
        self.settings: Any = SimpleNamespace(**self.fields["settings"])
        self.folder = Path(self.fields["folder"])
        """The harness's, with what is too large for a line; it is deleted at the end."""
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print goes to the log

    def batch(self) -> dict[str, np.ndarray]:
        """Returns the batch that all systems train on."""
        with np.load(self.folder / "batch.npz") as arrays:
            return dict(arrays)

    def answer(self, figures: dict[str, Any]) -> None:
        """Sends figures to the harness, a line of JSON."""
        print(json.dumps(figures), file=self._answers)


class Clock:
    """Counts finished updates: the first few warm up, the others are timed together."""

    def __init__(self, job: Job, *packages: str) -> None:
        self.job, self.packages = job, packages
        self.losses: list[float] = []
        self.norms: list[float] = []
        if job.fields["warm_up"] == 0:
            self._start()

    def tick(self, loss: float, norm: float) -> bool:
        """Takes note of an update that has finished; False when there were enough."""
        self.losses.append(float(loss))
        self.norms.append(float(norm))
        warm_up, fewest = self.job.fields["warm_up"], self.job.fields["updates"]
        timed = len(self.losses) - warm_up
        if timed == 0:
            self._start()
        wall = time.perf_counter() - self.begin if timed >= 0 else 0.0
        if timed < fewest or wall < self.job.fields["seconds"]:
            return True
        self._answer(timed, wall)
        return False

    def _start(self) -> None:
        self.peak = peak()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, and nothing else
        self.cpu, self.begin = cpu_seconds(), time.perf_counter()

    def _answer(self, timed: int, wall: float) -> None:
        spent, high = cpu_seconds() - self.cpu, peak()
        figures = {
            "cpu": spent / timed,
            "wall": wall / timed,
            "updates": timed,
            "imports": self.job.footprint,
            "peak": max(self.peak, high),
            "timed_peak": high,
            "losses": self.losses,
            "norms": self.norms,
            "versions": versions(self.packages),
        }
        self.job.answer(figures)


Rows = Sequence[Sequence[int] | np.ndarray]
"""Token ids of the N G completions."""
Draw = Callable[[np.ndarray, int, int], Rows]
"""Of prompts [N, P], a seed and the number of tokens that a completion has at most."""


def serve(load: Callable[[Job], Draw], *packages: str) -> None:
    """Loads an engine; answers each line, the arguments of `drawn`, with what that returns."""
    job = Job()
    draw = load(job)
    job.answer(versions(packages))
    for line in sys.stdin:
        job.answer(drawn(job, draw, **json.loads(line)))


def drawn(job: Job, draw: Draw, seconds: float, seed: int, most: int) -> dict[str, Any]:
    """Draws batches of fresh prompts until so many seconds have passed, one at least.

    Returns:
      Tokens, calls and seconds, and the token ids of the first batch.
    """
    begin, tokens, calls, first = time.perf_counter(), 0, 0, []
    while calls == 0 or time.perf_counter() - begin < seconds:
        rows = draw(prompts(job, seed + calls), seed + calls, most)
        tokens, calls, first = tokens + sum(map(len, rows)), calls + 1, first or rows
    wall = time.perf_counter() - begin
    ids = [[*map(int, row)] for row in first]
    return {"tokens": tokens, "calls": calls, "wall": wall, "first": ids}


def prompts(job: Job, seed: int) -> np.ndarray:
    """Returns random prompts [N, P], others for each seed, without the end of sequence."""
    rng = np.random.default_rng(seed)
    lowest, highest = job.fields["eos"] + 1, job.fields["vocabulary"]
    return rng.integers(lowest, highest, (job.shape.prompts, job.shape.prompt), dtype=np.int32)


def versions(packages: Sequence[str]) -> dict[str, str]:
    return {name: version(name) for name in packages}


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak(process: int | str = "self") -> float:
    """Peak resident MiB. Not ru_maxrss, which starts at the peak of the process that forked."""
    match = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(match[1]) / MIB if match else 0.0
