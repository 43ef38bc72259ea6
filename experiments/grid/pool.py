"""Cells spread over processes: equal programs to the same; one that dies fails its cell only."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from experiments.grid.cell import TRAIN, Cell
from experiments.grid.worker import DONE, LAST_LINES, READY, work
from ogrpo.trainer.config_update import require

ENDING_SECONDS = 5.0
STDERR = 2


class Finished(NamedTuple):
    """What became of a cell."""

    cell: Cell
    words: str | None
    """Its last words if it failed."""


@dataclass
class Worker:
    """A process, the cell it is at, and where its output goes."""

    process: Any
    pipe: connection.Connection
    log: Path
    program: str | None = None
    cell: Cell | None = None
    ready: bool = False
    """Whether it has begun to take cells."""

    def give(self, cell: Cell, program: str) -> None:
        """Sends a cell; a process that is gone is noticed when it is waited for."""
        self.cell, self.program = cell, program
        try:
            self.pipe.send(cell)
        except (BrokenPipeError, ConnectionResetError):
            return

    def last_words(self) -> str:
        """How it ended, and what it printed last."""
        self.process.join()
        code = self.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return "\n".join([f"its process ended with {how}", *text.splitlines()[-LAST_LINES:]])


def program_name(cell: Cell) -> str:
    """What cells share that are best measured by one process."""
    if cell.measure != TRAIN:
        return cell.measure
    from experiments.grid.train import program_of

    return program_of(cell.config)


class CannotStart(RuntimeError):
    """A process of the grid ended before it took a cell: no cell is at fault."""


class Pool:
    """`jobs` processes, each begun when it is needed."""

    def __init__(self, jobs: int, run_dir: Path) -> None:
        require(jobs > 0, f"jobs is {jobs}: give at least 1")
        self._jobs, self._run_dir = jobs, run_dir
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[Worker] = []
        self._begun = 0

    def measure(self, cells: Sequence[Cell]) -> Iterator[Finished]:
        """Yields each cell as it ends.

        Raises:
          CannotStart: a process ended before it took a cell; the message has its last words.
        """
        waiting = grouped(cells)
        self._feed(waiting)
        while busy := [worker for worker in self._workers if worker.cell is not None]:
            ready = connection.wait([w.pipe for w in busy] + [w.process.sentinel for w in busy])
            for worker in busy:
                if worker.pipe in ready or worker.process.sentinel in ready:
                    heard = self._heard(worker)
                    if heard is not None:
                        yield heard
            self._feed(waiting)

    def close(self) -> None:
        """Ends all processes, at once where they are in the middle of a cell."""
        for worker in self._workers:
            if worker.cell is None and worker.process.is_alive():
                _quietly(lambda w=worker: w.pipe.send(None))
            else:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(ENDING_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers.clear()

    def _heard(self, worker: Worker) -> Finished | None:
        """What became of a worker's cell; None where it is only now that it begins."""
        cell = worker.cell
        assert cell is not None
        try:
            outcome, words = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._workers.remove(worker)
            words = worker.last_words()
            if not worker.ready:
                raise CannotStart(f"a process of the grid cannot start: {words}") from None
            return Finished(cell, words)
        if outcome == READY:
            worker.ready = True
            return None
        worker.cell = None
        return Finished(cell, None if outcome == DONE else words)

    def _feed(self, waiting: dict[str, deque[Cell]]) -> None:
        """Gives every idle process a cell, of the program that it has or of one nobody is at."""
        for worker in [w for w in self._workers if w.cell is None and not w.process.is_alive()]:
            self._workers.remove(worker)
        while waiting:
            worker = next((w for w in self._workers if w.cell is None), None)
            if worker is None:
                if len(self._workers) == self._jobs:
                    return
                worker = self._start()
            taken = {w.program for w in self._workers if w is not worker and w.cell is not None}
            name = choose(waiting, worker.program, taken)
            worker.give(waiting[name].popleft(), name)
            if not waiting[name]:
                del waiting[name]

    def _start(self) -> Worker:
        ours, theirs = self._context.Pipe()
        log = self._run_dir / "logs" / f"worker-{os.getpid()}-{self._begun}.log"
        log.parent.mkdir(exist_ok=True)
        arguments = (theirs, self._run_dir, log, share_of_cpus(self._jobs, self._begun))
        process = self._context.Process(target=work, args=arguments, daemon=False)
        self._begun += 1
        with errors_in(log):
            process.start()
        theirs.close()
        worker = Worker(process, ours, log)
        self._workers.append(worker)
        return worker


@contextmanager
def errors_in(log: Path) -> Iterator[None]:
    """Processes that are started within the block have their errors in a file, from the first."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    before = os.dup(STDERR)
    try:
        os.dup2(handle, STDERR)
        yield
    finally:
        os.dup2(before, STDERR)
        os.close(before)
        os.close(handle)


def _quietly(send: Callable[[], None]) -> None:
    try:
        send()
    except OSError:  # it is gone already
        return


def grouped(cells: Sequence[Cell]) -> dict[str, deque[Cell]]:
    """Cells by program, in their order."""
    found: dict[str, deque[Cell]] = {}
    for cell in cells:
        found.setdefault(program_name(cell), deque()).append(cell)
    return found


def choose(waiting: dict[str, deque[Cell]], own: str | None, taken: set[str | None]) -> str:
    """The program that is compiled here; else the longest queue that nobody is at, or of all."""
    if own in waiting:
        return own
    free = [name for name in waiting if name not in taken] or [*waiting]
    return max(free, key=lambda name: len(waiting[name]))


def share_of_cpus(jobs: int, number: int) -> frozenset[int] | None:
    """The processors of one of several processes, whose threads would wait for each other's."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return None
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < jobs:
        return None
    each = len(cpus) // jobs
    first = number % jobs * each
    return frozenset(cpus[first : first + each])
