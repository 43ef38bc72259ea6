"""Grids whose processes are killed, raise or die; what is left goes on."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from io import StringIO
from pathlib import Path

import pytest
from distributed import LocalCluster
from rich.console import Console

from experiments.grid import pool
from experiments.grid.main import main
from experiments.grid.pool import CannotStart, Finished, connect, log_of
from experiments.grid.rows import ROWS, CellFiles, read_rows
from experiments.grid.runner import GridDisplay, _measure
from tests.experiments.grid.small import SquareStudy
from tests.processes import alive, eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PATIENCE = 240
COMMAND = """
import sys
from experiments.grid.main import main
from tests.experiments.grid.small import SquareStudy
sys.exit(main(SquareStudy, sys.argv[1:]))
"""


def arguments(folder: Path, *options: str) -> list[str]:
    return [f"--run-dir={folder / 'run'}", f"--folder={folder}", *options]


def grid(folder: Path, *options: str) -> tuple[int, str]:
    """Runs a grid in this process, its workers in others; returns the exit code and the output."""
    console = Console(file=StringIO(), width=200)
    code = main(SquareStudy, arguments(folder, *options), console)
    return code, console.file.getvalue()


def squares(folder: Path) -> dict[int, int]:
    _, rows = read_rows(folder / "run" / ROWS)
    return {row["coordinates"]["of"]: row["square"] for row in rows}


def measured(folder: Path) -> list[tuple[int, int]]:
    file = folder / "measured"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(value), int(process)) for value, process in map(str.split, lines)]


def failed(folder: Path) -> list[dict]:
    return [json.loads(f.read_text()) for f in (folder / "run" / "failed").glob("*.json")]


def test_a_killed_grid_takes_its_workers_along_and_what_raises_or_dies_later_fails_alone(tmp_path):
    orders = {n: tmp_path / f"wait-{n}" for n in (3, 4)}
    for order in orders.values():
        order.touch()
    options = ("--numbers", "1", "2", "3", "4", "--jobs", "2")
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments(tmp_path, *options)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        start_new_session=True,
    )

    def two_wait():
        done = [*(tmp_path / "run" / "cells").glob("*.json")]
        return len(done) == 2 and len(measured(tmp_path)) == 4

    assert eventually(two_wait, PATIENCE)
    workers = {pid for _, pid in measured(tmp_path)}
    process.kill()
    process.wait(PATIENCE)
    assert eventually(lambda: not any(map(alive, workers)), PATIENCE)

    orders[3].rename(tmp_path / "raise-3")
    orders[4].rename(tmp_path / "die-4")
    code, output = grid(tmp_path, *options)
    assert code == 1
    assert squares(tmp_path) == {1: 1, 2: 4, 105: 11025}
    words = {note["coordinates"]["of"]: note["words"] for note in failed(tmp_path)}
    assert words[3].endswith("ValueError: 3 is not to my taste")
    assert "SIGKILL" in words[4]
    assert "about to die" in words[4]
    assert "FAILED square of=3" in output
    assert "2 cells failed; the same command tries them again" in output
    header, _ = read_rows(tmp_path / "run" / ROWS)
    assert {note["coordinates"]["of"] for note in header["failed"]} == {3, 4}
    assert "3 is not to my taste" in (tmp_path / "run" / "report.html").read_text()

    for order in ("raise-3", "die-4"):
        (tmp_path / order).unlink()
    code, output = grid(tmp_path, "--numbers", "1", "2", "3", "4", "--jobs", "1")
    assert code == 0, output
    lines = [line for line in output.splitlines() if "square of=" in line]
    assert [line.split()[0] for line in lines] == ["3/4", "4/4", "5/5"]
    assert "left)" in lines[0]
    assert "left)" not in lines[-1]
    assert squares(tmp_path) == {1: 1, 2: 4, 3: 9, 4: 16, 130: 16900}
    assert not failed(tmp_path)
    assert "Failed cells" not in (tmp_path / "run" / "report.html").read_text()
    values = [value for value, _ in measured(tmp_path)]
    assert [values.count(n) for n in (1, 2, 105, 130)] == [1] * 4


def test_a_cell_whose_process_died_after_its_row_was_written_is_finished(tmp_path):
    cell, files = SquareStudy(folder=tmp_path).cell(3), CellFiles(tmp_path)
    files.open()

    class Dying:
        def measure(self, cells):
            files.put(cells[0].key, {"square": 9, "seconds": 0.1})
            yield Finished(cells[0], "its process ended")

    _measure([cell], files, Dying(), GridDisplay(Console(quiet=True)))
    assert files.failure(cell) is None


@pytest.mark.parametrize(
    ("jobs", "orders", "submitted", "ended"),
    [
        # an idle process dies: another takes the next cell
        (1, "end refuse end", [1, 2, 2], [(1, None), (2, None)]),
        # one dies beside a cell that has ended, which is not measured again
        (2, "end die", [1, 2], [(1, None), (2, "its process ended: gone")]),
        # one dies before the next cell is taken in: each of the others runs alone
        (2, "stay end refuse end end", [1, 2, 3, 1, 3], [(2, None), (1, None), (3, None)]),
    ],
)
def test_a_death_between_cells_is_no_end(jobs, orders, submitted, ended, tmp_path, monkeypatch):
    orders = iter(orders.split())
    cells, seen, stay = [SquareStudy(folder=tmp_path).cell(n) for n in (1, 2, 3)], [], Future()

    class Executor:
        def __init__(self, *_, **__):
            pass

        def submit(self, _, cell, run_dir):
            log_of(run_dir, cell).touch()
            seen.append(cell.config.value)
            future = Future()
            match next(orders):
                case "refuse":
                    raise BrokenProcessPool("gone")
                case "stay":
                    return stay
                case "die":
                    future.set_exception(BrokenProcessPool("gone"))
                case "end":
                    future.set_result(None)
            return future

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(pool, "ProcessPoolExecutor", Executor)
    made = pool.Pool(jobs, tmp_path)
    results = [*made.measure(cells[: len(ended)])]
    assert [(cell.config.value, words) for cell, words in results] == ended
    assert seen == submitted


def test_a_process_that_cannot_start_ends_the_grid_and_blames_none(tmp_path, monkeypatch, capfd):
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'no luck'); os._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CannotStart, match="a process of the grid cannot start"):
        grid(tmp_path, "--jobs", "2")
    assert "no luck" in capfd.readouterr().err
    assert not failed(tmp_path)


def test_the_workers_of_a_cluster_measure_what_this_machine_would(tmp_path):
    (tmp_path / "raise-1").touch()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        options = ("--numbers", "1", "2", "3", "4", "--cluster", cluster.scheduler_address)
        code, output = grid(tmp_path, *options)
    assert code == 1, output
    assert "1 cells failed; the same command tries them again" in output
    assert squares(tmp_path) == {2: 4, 3: 9, 4: 16, 129: 16641}
    assert len({process for _, process in measured(tmp_path)}) == 2
    with pytest.raises(ValueError, match=r"no Dask scheduler at tcp://127.0.0.1:9 .*start dask"):
        connect("tcp://127.0.0.1:9")
