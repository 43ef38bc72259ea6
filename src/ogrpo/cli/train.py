"""`ogrpo train`: trains on a task of your own or of the literature."""

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from ogrpo.cli.main import INTERRUPTED
from ogrpo.cli.options import parse
from ogrpo.run.main import run
from ogrpo.run.session import Finished, Invocation

PROGRAM = "ogrpo train"


def main(options: Sequence[str]) -> int:
    """Trains; returns the exit code."""
    config = parse(options, program=PROGRAM, preset="none")
    whole = shlex.join(["ogrpo", *sys.argv[1:]])
    return exit_code(run(config, Console(), Invocation(whole, PROGRAM)))


def exit_code(finished: Finished) -> int:
    """0, or what a shell expects of a command that was interrupted."""
    return 0 if finished.stopped is None else INTERRUPTED
