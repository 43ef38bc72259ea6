"""Cells spread over processes: loky's on this machine, or those of a Dask cluster.

Both are executors of `concurrent.futures`. (`joblib.Parallel`, which stands on the same two,
measures in the grid's own process where there is one job: a cell that dies would take the grid
along.) Cells of equal programs go to the same process, which has compiled it; as many are under way
as there are processes, so that the one that has finished takes what is submitted next.
"""

import atexit
import fcntl
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from loky import ProcessPoolExecutor

from experiments.grid.cell import TRAIN, Cell
from experiments.grid.rows import CellFiles

CONNECT_SECONDS = 10
LAST_LINES = 12
WATCH_SECONDS = 0.5
_AT_WORK = threading.Lock()
_BENCHES: dict[Path, Any] = {}
_LOCK_FILES: list[Any] = []


class Finished(NamedTuple):
    """A cell that has ended, with its last words if it failed."""

    cell: Cell
    words: str | None


class CannotStart(RuntimeError):
    """A process of the grid ended before it took a cell: no cell is at fault."""


class Pool:
    """`jobs` processes of this machine, or the workers of a Dask cluster.

    Args:
      jobs: processes; of a cluster None is one for each of its threads.
      run_dir: where rows and logs are left; of a cluster all its workers see it.
      cluster: the address of its scheduler.
    """

    def __init__(self, jobs: int | None, run_dir: Path, cluster: str | None = None) -> None:
        self._run_dir = run_dir.resolve()
        (self._run_dir / "logs").mkdir(exist_ok=True)
        self._client = connect(cluster) if cluster else None
        self.jobs = jobs or (sum(self._client.ncores().values()) if self._client else 1)
        self._executor: Executor | None = None
        self._running: dict[Future[str | None], tuple[Cell, str]] = {}

    def measure(self, cells: Sequence[Cell], jobs: int | None = None) -> Iterator[Finished]:
        """Yields each cell as it ends, measured by all processes or by so many.

        Raises:
          CannotStart: a process ended before it took a cell; the message has its last words.
        """
        waiting, program, jobs = grouped(cells), None, jobs or self.jobs
        for cell in cells:
            log_of(self._run_dir, cell).unlink(missing_ok=True)
        while waiting or self._running:
            while waiting and len(self._running) < jobs:
                program = next_program(waiting, program, {p for _, p in self._running.values()})
                self._submit(waiting[program].popleft(), program, jobs)
                waiting = {name: queue for name, queue in waiting.items() if queue}
                program = None
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            # One with a result comes before a death, for which all others run again.
            future = min(done, key=lambda each: each.cancelled() or each.exception() is not None)
            try:
                words = future.result()
            except BrokenProcessPool as error:
                yield from self._after_death([cell for cell, _ in self._running.values()], error)
                continue
            except Exception as error:  # what Dask raises of a worker that died, or has no folder
                words = f"{type(error).__name__}: {error}"
            cell, program = self._running.pop(future)
            yield Finished(cell, words)

    def _after_death(self, cells: list[Cell], error: Exception) -> Iterator[Finished]:
        """Blames the cell whose process died: of several that were under way, each is run alone."""
        self._running.clear()
        self.close()
        how = " ".join(str(error).split())
        if not any(log_of(self._run_dir, cell).is_file() for cell in cells):
            raise CannotStart(f"a process of the grid cannot start: {error}") from None
        if len(cells) == 1:
            printed = log_of(self._run_dir, cells[0]).read_text(errors="replace").splitlines()
            words = [f"its process ended: {how}", *printed[-LAST_LINES:]]
            yield Finished(cells[0], "\n".join(words))
            return
        for cell in cells:
            yield from self.measure([cell], 1)
        self.close()

    def _submit(self, cell: Cell, program: str, jobs: int) -> None:
        executor = self._executor
        if executor is None and self._client is not None:
            executor = self._client.get_executor(pure=False)
        elif executor is None:
            arguments = (self._run_dir, jobs)
            executor = ProcessPoolExecutor(jobs, initializer=begin, initargs=arguments)
        self._executor = executor
        try:
            future = executor.submit(work, cell, self._run_dir)
        except BrokenProcessPool as error:  # a process died since a cell was taken in
            if not self._running:  # it had none
                self.close()
                self._submit(cell, program, jobs)
                return
            future = Future()
            future.set_exception(error)
        self._running[future] = cell, program

    def close(self) -> None:
        """Ends all processes, at once where they are in the middle of a cell."""
        executor, self._executor = self._executor, None
        if isinstance(executor, ProcessPoolExecutor):
            executor.shutdown(wait=True, kill_workers=bool(self._running))
        elif executor is not None:
            for future in self._running:
                future.cancel()
            executor.shutdown(wait=False)
        if self._client is not None:
            self._client.close()
        self._running.clear()


def connect(address: str) -> Any:
    """Returns the client of a Dask cluster.

    Raises:
      ValueError: Dask is not installed, or there is no scheduler; says the remedy.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ValueError(
            "--cluster needs Dask: pip install distributed, or leave it out"
        ) from error
    try:
        return Client(address, set_as_default=False, timeout=CONNECT_SECONDS)
    except OSError as error:
        raise ValueError(
            f"there is no Dask scheduler at {address} ({error}): start dask scheduler, and"
            " dask worker --nthreads 1 on each machine"
        ) from error


def grouped(cells: Sequence[Cell]) -> dict[str, deque[Cell]]:
    """Returns cells by program, in their order: those that one process measures best."""
    programs: dict[str, deque[Cell]] = {}
    for cell in cells:
        program = cell.measure
        if program == TRAIN:
            from experiments.grid.train import program_of

            program = program_of(cell.config)
        programs.setdefault(program, deque()).append(cell)
    return programs


def next_program(waiting: dict[str, deque[Cell]], compiled: str | None, taken: set[str]) -> str:
    """Returns the program compiled here; else the longest queue that is free, or of all."""
    if compiled in waiting:
        return compiled
    free = [name for name in waiting if name not in taken] or [*waiting]
    return max(free, key=lambda name: len(waiting[name]))


# --- within a process of the grid


def log_of(run_dir: Path, cell: Cell) -> Path:
    """Returns the file that a cell's process prints to; it is absent before the cell has begun."""
    return run_dir / "logs" / f"{cell.key}.log"


def begin(run_dir: Path, jobs: int) -> None:
    """Makes ready a process of this machine: it ends with its parent, and has processors alone.

    Ctrl-C is for the parent, which then ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if jobs > 1 and hasattr(os, "sched_getaffinity"):  # else threads wait for each other's
        cpus = sorted(os.sched_getaffinity(0))
        each = len(cpus) // jobs
        first = _number(run_dir, jobs) % jobs * each
        if each:
            os.sched_setaffinity(0, cpus[first : first + each])


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
            measure = getattr(importlib.import_module(module), name)
            row = measure(cell, _bench(run_dir))
            seconds = round(time.perf_counter() - began, 2)
            made = {name: version(name) for name in ("jax", "ogrpo")} | {"date": f"{date.today()}"}
            files.put(cell.key, {**row, "seconds": seconds, **made})
        except Exception as error:  # the outermost boundary of a cell: the grid goes on without it
            traceback.print_exc()
            words = "".join(traceback.format_exception(error)).strip().splitlines()
            return "\n".join(words[-LAST_LINES:])
    return None


def _bench(run_dir: Path) -> Any:
    """Returns the bench that this process keeps from cell to cell of a run.

    None where the measurement has imported no trainer: it needs none, and starts without JAX.
    """
    if "experiments.grid.train" not in sys.modules:
        return None
    if run_dir not in _BENCHES:
        from rich.console import Console

        from experiments.grid.train import Bench

        _BENCHES[run_dir] = bench = Bench(run_dir, Console(width=100))
        atexit.register(bench.close)
    return _BENCHES[run_dir]


def _number(run_dir: Path, jobs: int) -> int:
    """Returns this process's number among `jobs`, by a lock that ends with the process."""
    for number in range(jobs):
        file = (run_dir / "logs" / f"process-{number}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        _LOCK_FILES.append(file)
        return number
    return 0


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """Sends all output of this process to a file within the block, that of C libraries too."""
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
