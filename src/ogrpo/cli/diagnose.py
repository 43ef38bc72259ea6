"""`ogrpo diagnose RUN/diverged/STEP`: where a run's updates ceased to be finite, on a CPU."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax

from ogrpo.run.diagnose import diagnose


def main(options: Sequence[str]) -> int:
    """Prints what the dumped updates compute; returns the exit code."""
    parser = argparse.ArgumentParser("ogrpo diagnose", description=__doc__)
    parser.add_argument("dump", type=Path, help="the folder that the run named: RUN/diverged/STEP")
    given = parser.parse_args(options)
    jax.config.update("jax_platforms", "cpu")
    for line in diagnose(given.dump):
        print(line)
    return 0
