"""Runs what a study lacks, stage by stage, shows its progress, and says which cells failed."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.grid.cell import Cell, check_honest
from experiments.grid.pool import Pool
from experiments.grid.rows import CellFiles, Row, Rows, write_rows
from ogrpo.system import lock
from ogrpo.system.files import make_folder


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
) -> tuple[list[Row], list[Row]]:
    """Measures what the run's folder lacks, by content hash; returns rows, and notes of failures.

    Args:
      stages: each gives its cells, from the rows of the stages before it.
      run_dir: where cells are kept.
      base: the config that rows tell their changes of.
      jobs: processes; of a cluster None is one for each of its threads.
      quick: whether few seeds will do.
      header: what is kept with the rows.
      cluster: the address of a Dask scheduler whose workers measure, if not this machine.

    Raises:
      ValueError: the cells are no honest grid, or another process has the folder.
    """
    make_folder(run_dir)
    with lock.held(run_dir, command_line()):
        files = CellFiles(run_dir)
        files.open()
        cells: list[Cell] = []
        display = GridDisplay(console)
        with closing(Pool(jobs, run_dir, cluster)) as pool, display.progress:
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
    for cell in filter(files.has, cells):
        files.row(cell, cell.config)  # what is damaged is said before hours of others
    missing = [cell for cell in cells if not files.has(cell)]
    alone = [*{cell.key: cell for cell in missing}.values()]
    display.expect(alone, len(cells) - len(missing))
    for cell, words in pool.measure(alone):
        if words is not None and not files.has(cell):  # a process may die with its row written
            files.put_failed(cell, words)
            display.show_failed(cell, words)
            continue
        row = files.row(cell, cell.config)
        score = row.get("final", {}).get("pass@1/sampled")
        display.show(cell, row["seconds"], "" if score is None else f"Pass@1 {score:.3f}")


def command_line() -> str:
    """Returns the command as a user types it."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])


class GridDisplay:
    """One bar over the grid on a terminal, a line for each cell elsewhere.

    Attributes:
      progress: the bar, which is shown within its `with` block.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._begun = console, time.monotonic()
        self.progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[latest]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self.progress.add_task("", total=None, left="", latest="")
        self._waiting: set[str] = set()
        self._finished = self._done = self._failed = 0

    def expect(self, cells: list[Cell], finished: int) -> None:
        """Takes in more cells, and how many besides are finished already."""
        self._finished += finished
        self._waiting |= {cell.key for cell in cells}
        self._update("")

    def show_failed(self, cell: Cell, words: str) -> None:
        """Shows that a cell failed, by the last of its last words."""
        self._waiting.discard(cell.key)
        self._failed += 1
        last = words.splitlines()[-1] if words else ""
        self._print(f"FAILED {cell}: {last}", style="red")
        self._update(f"{cell} ")

    def show(self, cell: Cell, seconds: float, score: str) -> None:
        """Shows that a cell has ended, and the time left."""
        self._waiting.discard(cell.key)
        self._done += 1
        self._update(f"{cell} {score}")
        if not self._console.is_terminal:
            more = f", {self._left()}" if self._waiting else ""
            count = f"{self._finished + self._done}/{self._total}"
            self._print(f"{count} {cell} {score} ({seconds:.0f} s{more})")

    def _left(self) -> str:
        """The time until all are done, by the pace so far."""
        each = (time.monotonic() - self._begun) / max(self._done + self._failed, 1)
        return f"{timedelta(seconds=round(each * len(self._waiting)))} left"

    @property
    def _total(self) -> int:
        return self._finished + self._done + self._failed + len(self._waiting)

    def _update(self, latest: str) -> None:
        self.progress.update(
            self._bar,
            total=self._total,
            completed=self._total - len(self._waiting),
            left=self._left() if self._done else "",
            latest=latest,
        )

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
