"""`ogrpo plan`: what fits, how long a step takes, which schedule keeps both sides busy."""

import argparse
from collections.abc import Sequence

import tyro
from rich.console import Console

from ogrpo.cli.config_file import HELP, as_file, read_file, split, with_values
from ogrpo_plan.config import Plan
from ogrpo_plan.main import run
from ogrpo_plan.presets import plan_of


def main(options: Sequence[str]) -> int:
    """Plans; returns the exit code."""
    return run(parse(options, program="ogrpo plan"), Console())


def parse(options: Sequence[str], *, program: str) -> Plan:
    """The options given; tyro answers unknown ones with the nearest names."""
    typed = split(options)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset")
    values = {} if typed.file is None else read_file(typed.file)
    named = early.parse_known_args(typed.options)[0].preset or values.get("preset", "none")
    base = plan_of(named)
    base = base if typed.file is None else with_values(base, values, typed.file)
    plan = tyro.cli(
        Plan,
        prog=program,
        args=typed.options,
        default=base,
        description=f"What fits, and how long a step takes.\n\n{HELP}",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if typed.prints:
        print(as_file(plan), end="")
        raise SystemExit(0)
    return plan
