"""A run of many steps in one process, which holds no more at its end than after its beginning.

    python -m benchmarks.chaos soak --steps 10000

Figures are taken from within, as a step ends: resident memory, open handles, threads, arrays that
live on devices, and the time since the step before. The first fifth is left out of
the slopes: programs are compiled then, and the replay buffer fills up.
"""

import gc
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console

from benchmarks.chaos.schedules import Schedule, make_task
from ogrpo.cli.options import parse
from ogrpo.run.main import run_steps
from ogrpo.run.session import Invocation

OPTIONS = (
    "--schedule.sync-interval=4 --schedule.sync-offset=1 --schedule.evaluate-every=100"
    " --replay.groups=64 --replay.sampler=uniform --replay.max-staleness=40 --checkpoint.every=50"
)
IN_STEP = " --schedule.sync-offset=0 --schedule.evaluate-every=20 --checkpoint.every=10"
"""With no thread ahead of the trainer's, what is held at a step does not depend on timing."""
WARM = 0.2
BYTES_A_STEP = 2048
"""More than this is called a leak: 20 MB in 10,000 steps."""


class Sample(NamedTuple):
    """The holdings of the process at one step, and the seconds since the step before.

    `threads` are Python's, as pools of C++ begin theirs when they first need them.
    """

    step: int
    resident: int
    handles: int
    threads: int
    arrays: int
    seconds: float


def run(folder: Path, steps: int, options: str = OPTIONS) -> list[Sample]:
    """Trains for so many steps; returns a sample of each, and of the evaluation before them."""
    words = Schedule(options).words(make_task(folder / "task"), folder / "run", steps)
    config = parse(words, program="ogrpo train", preset="none")
    samples: list[Sample] = []
    before = time.perf_counter()
    for _ in run_steps(config, Console(quiet=True), Invocation("soak", "soak")):
        now, pages = time.perf_counter(), Path("/proc/self/statm").read_text().split()[1]
        resident = int(pages) * os.sysconf("SC_PAGE_SIZE")
        handles, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        held = resident, handles, threads, len(jax.live_arrays())
        samples.append(Sample(len(samples), *held, seconds=now - before))
        before = now
    gc.collect()
    return samples


class Slopes(NamedTuple):
    """The growth after the beginning.

    Attributes:
      bytes_a_step: slope of the resident memory.
      handles, threads, arrays: the most at the end beyond the most after the beginning.
      slower: median time of a step in the last tenth, over that in the first tenth after the
        beginning.
    """

    bytes_a_step: float
    handles: int
    threads: int
    arrays: int
    slower: float

    @property
    def wrong(self) -> list[str]:
        """Returns what grew beyond its bound."""
        counts = {name: getattr(self, name) for name in ("handles", "threads", "arrays")}
        wrong = [f"{name} grew by {more}" for name, more in counts.items() if more > 0]
        if self.bytes_a_step > BYTES_A_STEP:
            text = f"{self.bytes_a_step:.0f} bytes a step, more than {BYTES_A_STEP}"
            wrong.append(f"memory grew by {text}")
        return wrong


def slopes(samples: Sequence[Sample]) -> Slopes:
    """Returns the growth of each figure after the first fifth."""
    warm = samples[int(len(samples) * WARM) :]
    half, tenth = len(warm) // 2, max(1, len(warm) // 10)
    early, late = warm[:half], warm[half:]
    line = np.polyfit([s.step for s in warm], [s.resident for s in warm], 1)
    more = {
        name: max(getattr(s, name) for s in late) - max(getattr(s, name) for s in early)
        for name in ("handles", "threads", "arrays")
    }
    times = [median(s.seconds for s in part) for part in (warm[:tenth], warm[-tenth:])]
    return Slopes(bytes_a_step=float(line[0]), **more, slower=times[1] / times[0])


def study(steps: int = 10_000) -> int:
    """Runs many steps in one process, prints what it held; returns how much grew too far."""
    with tempfile.TemporaryDirectory(prefix="ogrpo-soak-") as folder:
        begin = time.monotonic()
        samples = run(Path(folder), steps)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    print(f"{'step':>8}{'MiB':>8}{'handles':>9}{'threads':>9}{'arrays':>8}{'ms':>8}")
    for end in range(1, 11):
        part = samples[(end - 1) * len(samples) // 10 : end * len(samples) // 10]
        last, spent = part[-1], median(s.seconds for s in part) * 1e3
        print(
            f"{last.step:>8}{last.resident / 2**20:8.1f}{last.handles:9}{last.threads:9}"
            f"{last.arrays:8}{spent:8.1f}"
        )
    grown = slopes(samples)
    print(
        f"{steps} steps in {time.monotonic() - begin:.0f} s: {grown.bytes_a_step:+.0f} bytes a"
        f" step, handles {grown.handles:+d}, threads {grown.threads:+d}, arrays"
        f" {grown.arrays:+d}; a step takes {grown.slower:.2f} times as long at the end;"
        f" {size / 2**20:.1f} MiB on disk"
    )
    for line in grown.wrong:
        print(f"GREW: {line}")
    return len(grown.wrong)
