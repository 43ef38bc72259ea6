"""`python -m experiments.run STUDY`: measures what is missing and reports, or reports from rows."""

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from experiments.grid.page import all_sections, write_docs, write_page
from experiments.grid.rows import ROWS, CellFiles, Rows, read_rows, rows_file, write_rows
from experiments.grid.runner import command_line, run_grid
from experiments.grid.study import Study, of_header, parse
from ogrpo.system import lock
from ogrpo.system.files import make_folder
from ogrpo.system.terminal import shown

FAILED, INTERRUPTED = 1, 130


def main(kind: type[Study], options: Sequence[str], console: Console | None = None) -> int:
    """Runs the study of these options; returns the exit code.

    Raises:
      ValueError: with --from-rows, options that the rows bring.
    """
    study, console = parse(kind, options), console or Console()
    if not study.from_rows:
        return measure(study, console)
    if replace(study, from_rows=False, run_dir=None) != kind():
        raise ValueError("--from-rows has the options that its rows were made by: leave out others")
    return report_again(study, console)


def measure(study: Study, console: Console) -> int:
    """Measures what the run's folder lacks and reports; 1 after a failure, 130 after Ctrl-C."""
    folder = study.run_dir or Path("runs") / (study.name + "-quick" * study.quick)
    say(console, f"run directory {folder}")
    if study.base.rollout.url:
        say(console, f"what cells say of the servers, and how to start one: {folder / 'logs'}")
    try:
        rows, failed = run_grid(
            study.stages(),
            run_dir=folder,
            base=study.base,
            jobs=jobs_of(study),
            quick=study.quick,
            header={**study.header, "command": command_line()},
            console=console,
            cluster=study.cluster,
        )
    except KeyboardInterrupt:
        say(console, "stopped; finished cells are kept, the same command goes on")
        return INTERRUPTED
    page = report(study, rows, failed, folder, command_line(), console)
    say(console, f"rows    {folder / ROWS}\nreport  {page}")
    if failed:
        say(console, f"{len(failed)} cells failed; the same command tries them again")
        return FAILED
    if broken := study.broken(rows):
        say(console, "\n".join(f"MUST HOLD AND DOES NOT: {words}" for words in broken))
        return FAILED
    return 0


def report_again(study: Study, console: Console) -> int:
    """Makes the page, and what docs/ shows, from the committed rows."""
    path = rows_file(study.name)
    header, rows = read_rows(path)
    made = of_header(type(study), header, str(path))
    folder = study.run_dir or Path("runs") / f"{study.name}-from-rows"
    page = report(made, rows, header["failed"], folder, header["command"], console)
    for written in write_docs(made, rows, header["failed"]):
        say(console, f"written {written}")
    say(console, f"report  {page}")
    return 0


def report(
    study: Study, rows: Rows, failed: Rows, folder: Path, command: str, console: Console
) -> Path:
    """Shows the tables and writes the page; returns its path."""
    for section in all_sections(study, rows, failed):
        for table in section.tables:
            lines = RichTable(title=section.heading)
            for column in table.columns:
                lines.add_column(Text(column), overflow="fold")
            for line in table.lines:
                lines.add_row(*(Text(shown(value)) for value in line))
            console.print(lines)
    return write_page(study, rows, failed, folder, command=command)


def keep(study: str, folder: Path, console: Console) -> None:
    """Writes a run's rows where they are committed.

    Raises:
      ValueError: the folder has no rows, those of another study or of --quick, or lacks some that
        are kept.
    """
    header, rows = read_rows(folder / ROWS)
    if header["study"] != study:
        raise ValueError(f"{folder} has the rows of {header['study']!r}: give that of {study}")
    if header["options"]["quick"]:
        raise ValueError(f"{folder} was made with --quick, which is too little: run it whole")
    place = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    place.add_argument("--run-dir", "--run_dir")  # rows are the same wherever it was
    _, command = place.parse_known_args(shlex.split(header["command"]))
    target = rows_file(study)
    if target.is_file():
        before, kept = read_rows(target)
        if lost := {row["key"] for row in kept} - {row["key"] for row in rows}:
            raise ValueError(
                f"{folder} lacks {len(lost)} of the {len(kept)} rows in {target}: run what their"
                f" command names, {before['command']}; or delete that file first"
            )
    size = write_rows(target, {**header, "command": shlex.join(command)}, rows) / 1e6
    say(console, f"{len(rows)} rows, {size:.2f} MB, kept in {target}: commit them")


def restore(study: str, folder: Path, console: Console) -> None:
    """Puts the committed rows' cells into a run's folder, so that the study goes on from them.

    Raises:
      ValueError: there are no rows of this study, or a process measures in the folder.
    """
    _, rows = read_rows(rows_file(study))
    make_folder(folder)
    files = CellFiles(folder)
    with lock.held(folder, command_line()):
        files.open()
        number = sum(files.restore(row) for row in rows)
    say(console, f"{number} of {len(rows)} cells put into {folder}, which had the others")


def jobs_of(study: Study) -> int | None:
    """Returns the number of processes; None where the cluster decides."""
    if study.jobs is not None or study.cluster:
        return study.jobs
    base = study.base
    alone = base.rollout.url or base.model.path or base.mesh != type(base.mesh)()
    if alone or jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(console: Console, text: str) -> None:
    """Prints a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
