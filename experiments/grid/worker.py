"""What a process of the grid does: it measures a cell, and leaves its row in the run's folder."""

import atexit
import fcntl
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.grid.cell import Cell
from experiments.grid.rows import CellFiles

LAST_LINES = 12
WATCH_SECONDS = 0.5
_AT_WORK = threading.Lock()
_BENCHES: dict[Path, Any] = {}
_HELD: list[Any] = []


def log_of(run_dir: Path, cell: Cell) -> Path:
    """Where a cell's process prints; there is none before a cell has begun."""
    return run_dir / "logs" / f"{cell.key}.log"


def begin(run_dir: Path, jobs: int) -> None:
    """Makes ready a process of this machine: it ends with its parent, and has its own processors.

    Ctrl-C is for the parent, which then ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    cpus = share_of_cpus(jobs, _place(run_dir, jobs))
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def work(cell: Cell, run_dir: Path) -> str | None:
    """Measures a cell, one at a time in a process; returns its last words if it failed.

    Raises:
      ValueError: the run's folder is not on this machine.
    """
    files = CellFiles(run_dir)
    if not files.cells.is_dir():
        raise ValueError(
            f"{run_dir} is not on this machine: give --run-dir one that all workers see"
        )
    with _AT_WORK, _printing_to(log_of(run_dir, cell)):
        print(f"cell {cell.key}: {cell}", flush=True)
        began = time.perf_counter()
        try:
            module, _, name = cell.measure.partition(":")
            row = getattr(importlib.import_module(module), name)(cell, _bench(run_dir))
            seconds = round(time.perf_counter() - began, 2)
            files.put(cell, {**row, "seconds": seconds, **versions()})
        except Exception as error:  # the outermost boundary of a cell: the grid goes on without it
            traceback.print_exc()
            words = "".join(traceback.format_exception(error)).strip().splitlines()
            return "\n".join(words[-LAST_LINES:])
    return None


def _bench(run_dir: Path) -> Any:
    """What this process keeps from cell to cell of a run."""
    if run_dir not in _BENCHES:
        from rich.console import Console

        from experiments.grid.train import Bench

        _BENCHES[run_dir] = bench = Bench(run_dir, Console(width=100))
        atexit.register(bench.close)
    return _BENCHES[run_dir]


def versions() -> dict[str, str]:
    """What a row was made with, and when."""
    return {name: version(name) for name in ("jax", "ogrpo")} | {"date": f"{date.today()}"}


def share_of_cpus(jobs: int, number: int) -> frozenset[int] | None:
    """The processors of one of several processes, whose threads would wait for each other's."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return None
    cpus = sorted(os.sched_getaffinity(0))
    each = len(cpus) // jobs
    first = number % jobs * each
    return frozenset(cpus[first : first + each]) or None


def _place(run_dir: Path, jobs: int) -> int:
    """This process's number among `jobs`: a lock that the kernel lets go of when it ends."""
    for number in range(jobs):
        file = (run_dir / "logs" / f"process-{number}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        _HELD.append(file)
        return number
    return 0


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Within the block all output of this process goes to a file, that of C libraries too."""
    log.parent.mkdir(exist_ok=True)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    before = {}
    try:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            before[number] = os.dup(number)
            os.dup2(handle, number)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, known in before.items():
            os.dup2(known, number)
            os.close(known)
        os.close(handle)


def _end_with_parent(parent: int) -> None:
    """Ends this process once its parent is gone, in the middle of a cell if need be."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
