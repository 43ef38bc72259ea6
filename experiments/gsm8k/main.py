"""GRPO on grade-school mathematics, from the first prompt to the report.

Command: python -m experiments.run gsm8k
Hardware and time: a laptop, about a minute. Score: the table in README.md.
"""

import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from ogrpo.cli.options import parse
from ogrpo.cli.train import exit_code
from ogrpo.run.main import run
from ogrpo.run.session import Invocation

PROGRAM = "python -m experiments.run gsm8k"


def main(options: Sequence[str]) -> int:
    """Runs the study; returns the exit code."""
    whole = shlex.join(["python", "-m", "experiments.run", *sys.argv[1:]])
    config = parse(options, program=PROGRAM, preset="default")
    return exit_code(run(config, Console(), Invocation(whole, PROGRAM)))
