"""Runs what a study lacks, stage by stage, shows its progress, and says which cells failed."""

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.grid.cell import Cell, check_honest
from experiments.grid.pool import Pool
from experiments.grid.rows import CellFiles, Row, Rows, write_rows
from ogrpo.config.train import TrainConfig
from ogrpo.system import lock
from ogrpo.system.files import make_folder


class GridResult(NamedTuple):
    """Rows of the finished cells of a grid, and notes of those that failed."""

    rows: list[Row]
    failed: list[Row]


def run_grid(
    stages: Sequence[Callable[[Rows], Sequence[Cell]]],
    *,
    run_dir: Path,
    base: Any,
    jobs: int | None,
    quick: bool,
    header: Row,
    console: Console,
    cluster: str | None = None,
) -> GridResult:
    """Measures every cell that the run's folder lacks, by content hash.

    Args:
      stages: each gives its cells, from the rows of the stages before it.
      run_dir: where cells are kept.
      base: the config that rows tell their changes of.
      jobs: processes; of a cluster None is one for each of its threads.
      quick: whether few seeds will do.
      header: what is kept with the rows.
      console: where progress is shown.
      cluster: the address of a Dask scheduler whose workers measure, if not this machine.

    Raises:
      ValueError: the cells are no honest grid, or another process has the folder.
    """
    make_folder(run_dir)
    with lock.held(run_dir, command_line()):
        files = CellFiles(run_dir)
        files.open()
        cells: list[Cell] = []
        with (
            closing(Pool(jobs, run_dir, cluster)) as pool,
            grid_display(console, pool.jobs) as display,
        ):
            for number, stage in enumerate(stages, start=1):
                unique = {(c.key, str(c)): c for c in stage(files.finished(cells, base))}
                new = [*unique.values()]
                cells = [*cells, *new]
                check_honest(cells, quick=quick or number < len(stages))
                _measure(new, files, pool, display)
        notes = [note for cell in cells if (note := files.failure(cell)) is not None]
        rows = files.finished(cells, base)
        write_rows(files.rows, {**header, "failed": notes}, rows)
        return GridResult(rows, notes)


def _measure(cells: Sequence[Cell], files: CellFiles, pool: Pool, display: "GridDisplay") -> None:
    missing = [cell for cell in cells if not files.has(cell)]
    alone = [*{cell.key: cell for cell in missing}.values()]
    display.expect(alone, len(cells) - len(missing))
    for cell, words in pool.measure(alone):
        if words is not None:
            files.put_failed(cell, words)
            display.show_failed(cell, words)
            continue
        row = files.row(cell, cell.config)
        score = row.get("final", {}).get("pass@1/sampled")
        display.show(cell, row["seconds"], "" if score is None else f"Pass@1 {score:.3f}")


def command_line() -> str:
    """Returns the command as a user types it."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


def work_of(cell: Cell) -> int:
    """Returns steps and updates of a training run; 1 of anything else."""
    if not isinstance(cell.config, TrainConfig):
        return 1
    return cell.config.schedule.steps + cell.config.schedule.updates


def kind_of(cell: Cell) -> tuple[str, str, int]:
    """Returns what cells share that take about as long."""
    return cell.measure, cell.label, work_of(cell)


class GridDisplay:
    """One bar over the grid on a terminal, a line for each cell elsewhere."""

    def __init__(self, progress: Progress, console: Console, jobs: int) -> None:
        self._progress, self._console, self._jobs = progress, console, jobs
        self._bar = progress.add_task("", total=None, left="", latest="")
        self._seconds: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        self._waiting: dict[str, Cell] = {}
        self._done = self._failed = 0

    def expect(self, cells: list[Cell], finished: int) -> None:
        """Takes in more cells, and how many besides are finished already."""
        self._done += finished
        self._waiting |= {cell.key: cell for cell in cells}
        self._update("")

    def show_failed(self, cell: Cell, words: str) -> None:
        """Shows that a cell failed, by the last of its last words."""
        self._waiting.pop(cell.key, None)
        self._failed += 1
        last = words.splitlines()[-1] if words else ""
        self._print(f"FAILED {cell}: {last}", style="red")
        self._update(f"{cell} ")

    def show(self, cell: Cell, seconds: float, score: str) -> None:
        """Shows that a cell has ended, and the time left."""
        self._waiting.pop(cell.key, None)
        self._done += 1
        self._seconds[kind_of(cell)].append(seconds)
        self._update(f"{cell} {score}")
        if not self._console.is_terminal:
            left = self.seconds_left()
            more = f", {clock(left)} left" if left is not None and self._waiting else ""
            self._print(f"{self._done}/{self._total} {cell} {score} ({seconds:.0f} s{more})")

    def seconds_left(self) -> float | None:
        """Returns the time until all are done, by those that are; None before any was."""
        if not self._seconds:
            return None
        known = {kind: sum(times) / len(times) for kind, times in self._seconds.items()}
        rate = sum(known.values()) / sum(kind[2] for kind in known)
        each = [known.get(kind_of(c), rate * work_of(c)) for c in self._waiting.values()]
        return max(sum(each) / self._jobs, max(each, default=0.0))

    @property
    def _total(self) -> int:
        return self._done + self._failed + len(self._waiting)

    def _update(self, latest: str) -> None:
        left = self.seconds_left()
        self._progress.update(
            self._bar,
            total=self._total,
            completed=self._done + self._failed,
            left="" if left is None else f"{clock(left)} left",
            latest=latest,
        )

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Returns hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def grid_display(console: Console, jobs: int) -> Iterator[GridDisplay]:
    """Shows a grid's progress until the block ends."""
    progress = Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[latest]}", markup=False),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        yield GridDisplay(progress, console, jobs)
