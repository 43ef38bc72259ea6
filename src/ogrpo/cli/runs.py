"""Commands on folders of runs: `ogrpo report`, `ogrpo compare` and `ogrpo diagnose`."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def report(options: Sequence[str]) -> int:
    """Draws the page of runs anew, of one that is still under way too, and says where they are."""
    parser = argparse.ArgumentParser(prog="ogrpo report", description=report.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    paths = parser.parse_args([*options]).runs
    from ogrpo.report.run_dir import RunDir
    from ogrpo.report.run_page import redraw

    for path in paths:
        redraw(RunDir.read(path))
        print(path / "report.html")
    return 0


def compare(options: Sequence[str]) -> int:
    """Shows what runs came to, side by side, and where their options differ."""
    parser = argparse.ArgumentParser(prog="ogrpo compare", description=compare.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--output", type=Path, help="a page with curves, such as compare.html")
    arguments = parser.parse_args([*options])
    if len(arguments.runs) < 2:
        raise ValueError("one run has nothing to be compared with: name two or more")
    from rich.console import Console

    from ogrpo.report.compare import differences_table, results_table, write_page
    from ogrpo.report.run_dir import RunDir

    runs = [RunDir.read(path) for path in arguments.runs]
    console = Console()
    console.print(results_table(runs))
    console.print(differences_table(runs))
    if arguments.output is not None:
        write_page(runs, arguments.output)
        console.print(str(arguments.output), markup=False, soft_wrap=True)
    return 0


def diagnose(options: Sequence[str]) -> int:
    """Shows on a CPU where the updates of RUN/diverged/STEP ceased to be finite."""
    parser = argparse.ArgumentParser(prog="ogrpo diagnose", description=diagnose.__doc__)
    parser.add_argument("dump", type=Path, help="the folder that the run named: RUN/diverged/STEP")
    dump = parser.parse_args([*options]).dump
    import jax

    from ogrpo.run.diagnose import diagnose as lines_of

    jax.config.update("jax_platforms", "cpu")
    for line in lines_of(dump):
        print(line)
    return 0
