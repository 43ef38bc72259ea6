"""`ogrpo plan`: what fits, how long a step takes, which schedule keeps both sides busy."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ogrpo.cli.options import parse_config
from ogrpo_plan.config import Plan
from ogrpo_plan.main import run
from ogrpo_plan.presets import plan_of


def main(options: Sequence[str]) -> int:
    """Plans; returns the exit code."""
    return run(parse(options, program="ogrpo plan"), Console())


def parse(options: Sequence[str], *, program: str) -> Plan:
    """Returns the plan of the options."""

    def base(typed: Sequence[str], values: Mapping[str, Any]) -> Plan:
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        early.add_argument("--preset")
        return plan_of(early.parse_known_args([*typed])[0].preset or values.get("preset", "none"))

    title = "What fits, and how long a step takes."
    return parse_config(options, program=program, base=base, title=title)
