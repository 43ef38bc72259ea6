"""Commands on folders of runs: `ogrpo report`, `compare`, `certify` and `diagnose`."""

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
    paths = parser.parse_args([*options]).runs
    if len(paths) < 2:
        raise ValueError("one run has nothing to be compared with: name two or more")
    from rich.console import Console

    from ogrpo.report.compare import differences, results
    from ogrpo.report.run_dir import RunDir

    runs = [RunDir.read(path) for path in paths]
    console = Console()
    console.print(results(runs))
    console.print(differences(runs))
    return 0


def certify(options: Sequence[str]) -> int:
    """Checks the certificates of RUN in exact arithmetic; --coq writes a file that Coq checks."""
    parser = argparse.ArgumentParser(prog="ogrpo certify", description=certify.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--coq", action="store_true", help="write RUN/certificates.v")
    arguments = parser.parse_args([*options])
    from ogrpo.report.certificates import claim, coq_file, is_accepted
    from ogrpo.report.metrics_file import read_records
    from ogrpo.report.run_dir import RunDir
    from ogrpo.system.files import write_text

    run = RunDir.read(arguments.run)
    claims = [claim(line) for line in read_records(run.certificates)]
    for each in claims:
        bound, draws = each.bound / each.scale, len(each.gains)
        print(f"step {each.step}: a gain of {bound:.4f} at least, {draws:,} draws")
        if not is_accepted(each):
            raise ValueError(f"the draws of step {each.step} do not prove that; numbers changed")
    if not claims:
        print(f"{arguments.run} has no certificate of ratios above 0 (docs/certificates.md)")
    elif arguments.coq:
        path = run.certificates.with_suffix(".v")
        write_text(path, coq_file(claims, run.path.name, path.name))
        print(path)
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
