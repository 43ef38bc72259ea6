"""`ogrpo report RUN...`: draws the page of runs anew, of one that is still under way too."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import redraw


def main(options: Sequence[str]) -> int:
    """Draws the pages and says where they are."""
    parser = argparse.ArgumentParser(prog="ogrpo report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    for path in parser.parse_args([*options]).runs:
        redraw(RunDir.read(path))
        print(path / "report.html")
    return 0
