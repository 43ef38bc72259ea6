"""`ogrpo compare RUN RUN ...`: what runs came to, side by side, and where their options differ."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ogrpo.report.compare import differences_table, results_table, write_page
from ogrpo.report.run_dir import RunDir


def main(options: Sequence[str]) -> int:
    """Shows two tables, and writes a page with curves where one is asked for."""
    parser = argparse.ArgumentParser(prog="ogrpo compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--output", type=Path, help="a page with curves, such as compare.html")
    given = parser.parse_args([*options])
    if len(given.runs) < 2:
        raise ValueError("one run has nothing to be compared with: name two or more")
    runs = [RunDir.read(path) for path in given.runs]
    console = Console()
    console.print(results_table(runs))
    console.print(differences_table(runs))
    if given.output is not None:
        write_page(runs, given.output)
        console.print(str(given.output), markup=False, soft_wrap=True)
    return 0
