"""A process that measures one cell after the other, until its parent has no more or is gone."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from datetime import date
from importlib.metadata import version
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from experiments.grid.cell import Cell
from experiments.grid.rows import CellFiles

LAST_LINES = 12
READY, DONE, FAILED = "ready", "done", "failed"


def work(pipe: Connection, run_dir: Path, log: Path, cpus: frozenset[int] | None) -> None:
    """Answers each cell that comes through the pipe: `DONE`, or `FAILED` and the last words.

    Args:
      pipe: where cells come from; None ends the process.
      run_dir: where rows are left.
      log: gets what this process prints, which is told should it die.
      cpus: the processors that it may use; None for all.
    """
    _print_to(log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    from rich.console import Console

    from experiments.grid.train import Bench

    files = CellFiles(run_dir)
    bench = Bench(run_dir, Console(width=100))
    pipe.send((READY, ""))
    with contextlib.closing(bench), contextlib.suppress(EOFError):
        while (cell := pipe.recv()) is not None:
            print(f"cell {cell.key}: {cell}", flush=True)
            pipe.send(_measured(cell, files, bench))


def _measured(cell: Cell, files: CellFiles, bench: Any) -> tuple[str, str]:
    begin = time.perf_counter()
    try:
        module, _, name = cell.measure.partition(":")
        found = getattr(importlib.import_module(module), name)(cell, bench)
        seconds = round(time.perf_counter() - begin, 2)
        files.put(cell, {**found, "seconds": seconds, **versions()})
    except Exception as error:  # the outermost boundary of a cell: the grid goes on without it
        traceback.print_exc()
        words = "".join(traceback.format_exception(error)).strip().splitlines()
        return FAILED, "\n".join(words[-LAST_LINES:])
    return DONE, ""


def versions() -> dict[str, str]:
    """What a row was made with, and when."""
    return {name: version(name) for name in ("jax", "ogrpo")} | {"date": f"{date.today()}"}


def _print_to(log: Path) -> None:
    """Sends all output of this process to a file, that of C libraries too."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(handle, stream.fileno())
    os.close(handle)


def _end_with_parent() -> None:
    """Ends this process once its parent is gone, in the middle of a cell if need be."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
