"""Cells spread over processes: loky's on this machine, or those of a Dask cluster.

Both are executors of `concurrent.futures`. (`joblib.Parallel`, which stands on the same two,
measures in the grid's own process where there is one job: a cell that dies would take the grid
along.) Cells of equal programs go to the same process, which has compiled it; as many are under way
as there are processes, so that the one that has finished takes what is submitted next.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from loky import ProcessPoolExecutor

from experiments.grid.cell import TRAIN, Cell
from experiments.grid.worker import LAST_LINES, begin, log_of, work
from ogrpo.config.values import require

CONNECT_SECONDS = 10


class Finished(NamedTuple):
    """What became of a cell."""

    cell: Cell
    words: str | None
    """Its last words if it failed."""


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
        require(jobs is None or jobs > 0, f"jobs is {jobs}: give at least 1")
        self._run_dir = run_dir.resolve()
        (self._run_dir / "logs").mkdir(exist_ok=True)
        self._client = connect(cluster) if cluster else None
        self.jobs = jobs or (sum(self._client.ncores().values()) if self._client else 1)
        self._executor: Executor | None = None
        self._running: dict[Future[str | None], tuple[Cell, str]] = {}

    def measure(self, cells: Sequence[Cell]) -> Iterator[Finished]:
        """Yields each cell as it ends.

        Raises:
          CannotStart: a process ended before it took a cell; the message has its last words.
        """
        yield from self._measure(cells, self.jobs)

    def _measure(self, cells: Sequence[Cell], jobs: int) -> Iterator[Finished]:
        waiting, program = grouped(cells), None
        for cell in cells:
            log_of(self._run_dir, cell).unlink(missing_ok=True)
        while waiting or self._running:
            while waiting and len(self._running) < jobs:
                program = choose(waiting, program, {name for _, name in self._running.values()})
                self._submit(waiting[program].popleft(), program, jobs)
                waiting = {name: queue for name, queue in waiting.items() if queue}
                program = None
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            future = done.pop()
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
        begun = [cell for cell in cells if log_of(self._run_dir, cell).is_file()]
        if not begun:
            raise CannotStart(f"a process of the grid cannot start: {error}") from None
        if len(cells) == 1:
            printed = log_of(self._run_dir, cells[0]).read_text(errors="replace").splitlines()
            words = [f"its process ended: {how}", *printed[-LAST_LINES:]]
            yield Finished(cells[0], "\n".join(words))
            return
        for cell in cells:
            yield from self._measure([cell], 1)
        self.close()

    def _submit(self, cell: Cell, program: str, jobs: int) -> None:
        executor = self._executor
        if executor is None and self._client is not None:
            executor = self._client.get_executor(pure=False)
        elif executor is None:
            ready = {"initializer": begin, "initargs": (self._run_dir, jobs)}
            executor = ProcessPoolExecutor(jobs, **ready)
        self._executor = executor
        self._running[executor.submit(work, cell, self._run_dir)] = cell, program

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


def program_name(cell: Cell) -> str:
    """What cells share that are best measured by one process."""
    if cell.measure != TRAIN:
        return cell.measure
    from experiments.grid.train import program_of

    return program_of(cell.config)


def grouped(cells: Sequence[Cell]) -> dict[str, deque[Cell]]:
    """Cells by program, in their order."""
    programs: dict[str, deque[Cell]] = {}
    for cell in cells:
        programs.setdefault(program_name(cell), deque()).append(cell)
    return programs


def choose(waiting: dict[str, deque[Cell]], compiled: str | None, taken: set[str]) -> str:
    """The program that is compiled here; else the longest queue that nobody is at, or of all."""
    if compiled in waiting:
        return compiled
    free = [name for name in waiting if name not in taken] or [*waiting]
    return max(free, key=lambda name: len(waiting[name]))
