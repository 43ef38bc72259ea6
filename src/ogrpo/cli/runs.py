"""Commands on folders of runs: `ogrpo report`, `watch`, `compare`, `certify` and `diagnose`."""

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


def watch(options: Sequence[str]) -> int:
    """Serves the page of a run, drawn anew at each request, which a browser makes every 10 s."""
    parser = argparse.ArgumentParser(prog="ogrpo watch", description=watch.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--host", default="127.0.0.1", help="the address to serve at")
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one")
    arguments = parser.parse_args([*options])
    from ogrpo.report.run_dir import RunDir
    from ogrpo.report.watch import make_server

    with make_server(RunDir.read(arguments.run), arguments.host, arguments.port) as server:
        print(f"http://{arguments.host}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()
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
