"""Runs what a study lacks, stage by stage, and says which cells failed."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.grid.cell import Cell, check_honest
from experiments.grid.pool import Pool
from experiments.grid.progress import GridDisplay, grid_display
from experiments.grid.rows import CellFiles, Row, write_rows
from ogrpo.system import lock
from ogrpo.system.files import make_folder

Rows = Sequence[Row]
Stage = Callable[[Rows], Sequence[Cell]]


@dataclass(frozen=True)
class GridResult:
    """What a grid came to."""

    rows: list[Row]
    failed: list[Row]
    """Notes of the cells that failed, with their last words."""


def run_grid(
    stages: Sequence[Stage],
    *,
    run_dir: Path,
    base: Any,
    jobs: int | None,
    quick: bool,
    header: Row,
    console: Console,
    cluster: str | None = None,
) -> GridResult:
    """Measures every cell that the run's folder lacks; finished ones are found by content hash.

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
            grid_display(console, pool.jobs) as shown,
        ):
            for stage in stages:
                new = _unique([*stage(files.finished(cells, base))])
                cells = [*cells, *new]
                check_honest(cells, quick=quick)
                _measure(new, files, pool, shown)
        notes = [note for cell in cells if (note := files.failure(cell)) is not None]
        rows = files.finished(cells, base)
        write_rows(files.rows, {**header, "failed": notes}, rows)
        return GridResult(rows, notes)


def _measure(cells: Sequence[Cell], files: CellFiles, pool: Pool, shown: GridDisplay) -> None:
    missing = [cell for cell in cells if not files.has(cell)]
    alone = [*{cell.key: cell for cell in missing}.values()]
    shown.expect(alone, len(cells) - len(missing))
    for cell, words in pool.measure(alone):
        if words is not None:
            files.put_failed(cell, words)
            shown.show(cell, None, words, "")
            continue
        row = files.row(cell, cell.config)
        score = row.get("final", {}).get("pass@1/sampled")
        shown.show(cell, row["seconds"], None, "" if score is None else f"Pass@1 {score:.3f}")


def _unique(cells: Sequence[Cell]) -> list[Cell]:
    """Cells, those that say the same only once."""
    return [*{(cell.key, str(cell)): cell for cell in cells}.values()]


def command_line() -> str:
    """The command as a user types it."""
    return shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])
