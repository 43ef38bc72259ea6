"""Runs that are killed, stormed and soaked: what a long run meets, in minutes.

python -m benchmarks.chaos kills --runs 30 --seed 0
"""

import argparse
import os
import sys
from pathlib import Path

import platformdirs

CHEAP = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    commands = made.add_subparsers(dest="command", required=True)
    kills = commands.add_parser("kills", help="SIGKILL at random moments, resumed and compared")
    kills.add_argument("--runs", type=int, default=30)
    kills.add_argument("--seed", type=int, default=0)
    kills.add_argument("--most", type=int, default=3, help="kills in one run at most")
    kills.add_argument("--only", nargs="+", metavar="SCHEDULE", help="default: all of them")
    return made


def prepare() -> None:
    """Has JAX compile cheaply, and keep every program: most lives are short."""
    cache = Path(os.environ.get("OGRPO_CACHE_DIR") or platformdirs.user_cache_path("ogrpo"))
    for name, value in {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": CHEAP,
        "JAX_COMPILATION_CACHE_DIR": str(cache / "chaos"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }.items():
        os.environ.setdefault(name, value)


def main() -> int:
    """The command line."""
    options = parser().parse_args()
    prepare()
    # Imported here: JAX reads the environment then.
    from benchmarks.chaos import kills
    from benchmarks.chaos.schedules import SCHEDULES

    names = options.only or [*SCHEDULES]
    if unknown := [name for name in names if name not in SCHEDULES]:
        sys.exit(f"there is no schedule {unknown[0]!r}; there are {', '.join(SCHEDULES)}")
    return min(1, kills.study(options.runs, options.seed, names, options.most))


if __name__ == "__main__":
    sys.exit(main())
