"""Grids as processes: killed, interrupted, with cells that raise or die; what is left goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed import LocalCluster

from experiments.grid.pool import connect
from experiments.grid.rows import ROWS, read_rows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PATIENCE = 240
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from tests.experiments.grid.small import command; command()"
)
"""A shell that runs the tests in its background has interrupts ignored, in what they start too."""


def start(folder: Path, *options: str, path: Path = ROOT) -> subprocess.Popen[str]:
    paths = [str(path), str(ROOT), str(ROOT / "src")]
    return subprocess.Popen(
        [
            *(sys.executable, "-c", COMMAND),
            *(f"--run-dir={folder / 'run'}", f"--folder={folder}", *options),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    told, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, told


def squares(folder: Path) -> dict[int, int]:
    _, rows = read_rows(folder / "run" / ROWS)
    return {row["coordinates"]["of"]: row["square"] for row in rows}


def measured(folder: Path) -> list[tuple[int, int]]:
    file = folder / "measured"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(value), int(process)) for value, process in map(str.split, lines)]


def finished(folder: Path) -> int:
    return len([*(folder / "run" / "cells").glob("*.json")])


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_grid_that_is_killed_takes_its_workers_along_and_goes_on_with_what_it_has(tmp_path):
    orders = [tmp_path / f"wait-{n}" for n in (3, 4)]
    for order in orders:
        order.touch()
    options = ("--numbers", "1", "2", "3", "4", "--jobs", "2")
    process = start(tmp_path, *options)
    until(lambda: finished(tmp_path) == 2 and len(measured(tmp_path)) == 4, "two cells wait")
    workers = {pid for _, pid in measured(tmp_path)}
    process.kill()
    end(process)
    until(lambda: not any(map(alive, workers)), "the workers of the killed grid are gone")
    for order in orders:
        order.unlink()
    code, told = end(start(tmp_path, *options))
    assert code == 0, told
    values = [value for value, _ in measured(tmp_path)]
    assert sorted(values) == [1, 2, 3, 3, 4, 4, 130]  # 1 and 2 once, and 100 + 1 + 4 + 9 + 16
    assert squares(tmp_path) == {1: 1, 2: 4, 3: 9, 4: 16, 130: 16900}


def test_a_cell_that_raises_or_kills_its_process_fails_alone_and_is_tried_again(tmp_path):
    (tmp_path / "raise-1").touch()
    (tmp_path / "die-2").touch()
    options = ("--numbers", "1", "2", "3", "--jobs", "1")
    code, told = end(start(tmp_path, *options))
    assert code == 1
    assert squares(tmp_path) == {3: 9, 109: 11881}
    notes = [json.loads(f.read_text()) for f in (tmp_path / "run" / "failed").glob("*.json")]
    words = {note["coordinates"]["of"]: note["words"] for note in notes}
    assert words[1].endswith("ValueError: 1 is not to my taste")
    assert "SIGKILL" in words[2]
    assert "about to die" in words[2]
    assert "FAILED square of=1" in told
    assert "2 cells failed; the same command tries them again" in told
    header, _ = read_rows(tmp_path / "run" / ROWS)
    assert {note["coordinates"]["of"] for note in header["failed"]} == {1, 2}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "1 is not to my taste" in page
    for order in ("raise-1", "die-2"):
        (tmp_path / order).unlink()
    code, told = end(start(tmp_path, *options))
    assert code == 0, told
    lines = [line for line in told.splitlines() if "square of=" in line]
    assert [line.split()[0] for line in lines] == ["2/3", "3/3", "4/4"]
    assert "left)" in lines[0]
    assert "left)" not in lines[-1]
    assert squares(tmp_path) == {1: 1, 2: 4, 3: 9, 114: 12996}
    assert [value for value, _ in measured(tmp_path)].count(3) == 1
    assert not [*(tmp_path / "run" / "failed").iterdir()]
    assert "Failed cells" not in (tmp_path / "run" / "report.html").read_text()


def test_ctrl_c_leaves_finished_cells_and_no_process_and_the_folder_was_one_grids(tmp_path):
    (tmp_path / "wait-2").touch()
    process = start(tmp_path, "--numbers", "1", "2", "--jobs", "1")
    until(lambda: finished(tmp_path) == 1 and len(measured(tmp_path)) == 2, "a cell waits")
    code, told = end(start(tmp_path, "--numbers", "1", "--jobs", "1"))
    assert code != 0
    assert f"{tmp_path / 'run'} is in use by process {process.pid}" in told
    os.killpg(process.pid, signal.SIGINT)
    code, told = end(process)
    assert code == 130
    assert "the same command goes on" in told
    assert not any(alive(pid) for _, pid in measured(tmp_path))
    assert finished(tmp_path) == 1
    assert not [*(tmp_path / "run" / "failed").iterdir()]


def test_a_process_that_cannot_start_ends_the_grid_with_its_words_and_no_cell_is_blamed(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys\nif any('popen_loky' in word for word in sys.orig_argv): raise SystemExit('no luck here')\n"
    )
    code, told = end(start(tmp_path, "--jobs", "2", path=broken))
    assert code != 0
    assert "a process of the grid cannot start" in told
    assert "no luck here" in told
    assert not [*(tmp_path / "run" / "failed").iterdir()]


def test_the_workers_of_a_cluster_measure_what_this_machine_would(tmp_path):
    (tmp_path / "raise-1").touch()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        options = ("--numbers", "1", "2", "3", "4", "--cluster", cluster.scheduler_address)
        code, told = end(start(tmp_path, *options))
    assert code == 1, told
    assert "1 cells failed; the same command tries them again" in told
    assert squares(tmp_path) == {2: 4, 3: 9, 4: 16, 129: 16641}
    assert len({process for _, process in measured(tmp_path)}) == 2
    with pytest.raises(ValueError, match=r"no Dask scheduler at tcp://127.0.0.1:9 .*start dask"):
        connect("tcp://127.0.0.1:9")
