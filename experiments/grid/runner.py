"""Runs what a study lacks, stage by stage, shows its progress, and says which cells failed."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.grid.cell import Cell, check_honest
from experiments.grid.pool import Pool
from experiments.grid.rows import CellFiles, Row, Rows, write_rows
from ogrpo.config.train import TrainConfig
from ogrpo.system import lock
from ogrpo.system.files import make_folder


def run_grid(
    stages: Sequence[Callable[[Rows], Sequence[Cell]]],
    *,
    run_dir: Path,
    base: Any,
    jobs: int,
    quick: bool,
    header: Row,
    console: Console,
) -> tuple[list[Row], list[Row]]:
    """Measures every cell that the run's folder lacks, by content hash.

    Args:
      stages: each gives its cells, from the rows of the stages before it.
      run_dir: where cells are kept.
      base: the config that rows tell their changes of.
      jobs: processes.
      quick: whether few seeds will do.
      header: what is kept with the rows.
      console: where progress is shown.

    Returns:
      Rows of the finished cells, and notes of those that failed.

    Raises:
      ValueError: the cells are no honest grid, or another process has the folder.
    """
    make_folder(run_dir)
    with lock.held(run_dir, command_line()):
        files = CellFiles(run_dir)
        files.open()
        cells: list[Cell] = []
        display = GridDisplay(console, jobs)
        with closing(Pool(jobs, run_dir)) as pool:
            for number, stage in enumerate(stages, start=1):
                unique = {(c.key, str(c)): c for c in stage(files.finished(cells, base))}
                new = [*unique.values()]
                cells = [*cells, *new]
                check_honest(cells, quick=quick or number < len(stages))
                _measure(new, files, pool, display)
        notes = [note for cell in cells if (note := files.failure(cell)) is not None]
        rows = files.finished(cells, base)
        write_rows(files.rows, {**header, "failed": notes}, rows)
        return rows, notes


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


class GridDisplay:
    """A line for each cell that has ended, with the time left."""

    def __init__(self, console: Console, jobs: int) -> None:
        self._console, self._jobs = console, jobs
        self._spent, self._work = 0.0, 0
        self._waiting: dict[str, Cell] = {}
        self._done = self._failed = 0

    def expect(self, cells: list[Cell], finished: int) -> None:
        """Takes in more cells, and how many besides are finished already."""
        self._done += finished
        self._waiting |= {cell.key: cell for cell in cells}

    def show_failed(self, cell: Cell, words: str) -> None:
        """Shows that a cell failed, by the last of its last words."""
        self._waiting.pop(cell.key, None)
        self._failed += 1
        last = words.splitlines()[-1] if words else ""
        self._print(f"FAILED {cell}: {last}", style="red")

    def show(self, cell: Cell, seconds: float, score: str) -> None:
        """Shows that a cell has ended, and the time left: as long a step as those so far."""
        self._waiting.pop(cell.key, None)
        self._done += 1
        self._spent, self._work = self._spent + seconds, self._work + work_of(cell)
        each = [self._spent / self._work * work_of(cell) for cell in self._waiting.values()]
        left = max(sum(each) / self._jobs, max(each, default=0.0))
        more = f", {timedelta(seconds=round(left))} left" if self._waiting else ""
        total = self._done + self._failed + len(self._waiting)
        self._print(f"{self._done}/{total} {cell} {score} ({seconds:.0f} s{more})")

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
