"""`ogrpo train`: trains on a task of your own or of the literature."""

import shlex
import sys
from collections.abc import Sequence

from ogrpo.cli.main import INTERRUPTED
from ogrpo.cli.options import parse


def main(options: Sequence[str], *, program: str = "ogrpo train", preset: str = "none") -> int:
    """Trains; returns the exit code: 0, or what a shell expects of an interrupted command."""
    config = parse(options, program=program, preset=preset)
    # Imported late: --help needs no JAX.
    from rich.console import Console

    from ogrpo.run.main import run
    from ogrpo.run.session import Invocation

    whole = shlex.join([*program.split()[:-1], *sys.argv[1:]])
    finished = run(config, Console(), Invocation(whole, program))
    return 0 if finished.stopped is None else INTERRUPTED
