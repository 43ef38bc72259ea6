"""One measurement in one fresh process: the job that comes in, the figures that go out."""

import json
import re
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from cases import Shape

MIB = 2**10  # of /proc's kB


class Job:
    """The job from the driver; made first thing after a worker's imports."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
        self.footprint = peak()
        self.shape = Shape(**self.fields["shape"])
        self.settings: dict[str, Any] = self.fields["settings"]
        self.weights: str | None = self.fields["weights"]

    def batch(self) -> dict[str, np.ndarray]:
        with np.load(self.fields["batch"]) as arrays:
            return dict(arrays)


class Clock:
    """Counts finished updates: the first few warm up, the others are timed together."""

    def __init__(self, job: Job, packages: tuple[str, ...]) -> None:
        self.job, self.packages = job, packages
        self.losses: list[float] = []
        self.norms: list[float] = []

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
        self._write(timed, wall)
        return False

    def _start(self) -> None:
        self.peak = peak()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, and nothing else
        self.cpu, self.begin = cpu_seconds(), time.perf_counter()

    def _write(self, timed: int, wall: float) -> None:
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
            "versions": {name: version(name) for name in self.packages},
        }
        Path(self.job.fields["result"]).write_text(json.dumps(figures))


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak() -> float:
    """Peak resident MiB. Not ru_maxrss, which starts at the peak of the process that forked."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / MIB
