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
    kills.add_argument("--writes", action="store_true", help="at changes of files alone")
    kills.add_argument("--only", nargs="+", metavar="SCHEDULE", help="default: all of them")
    storm = commands.add_parser("storm", help="everything is killed and stopped at random")
    storm.add_argument("--minutes", type=float, default=30.0)
    storm.add_argument(
        "--blows", nargs="+", default=[], metavar="KIND", help="just these, in order"
    )
    storm.add_argument("--pause", type=float, default=3.0, help="mean seconds between two blows")
    storm.add_argument("--seed", type=int, default=0)
    storm.add_argument("--urls", nargs="+", default=[], help="servers that are left alone")
    storm.add_argument("--model", help="the folder that they serve")
    soak = commands.add_parser("soak", help="many steps in one process, which holds no more")
    soak.add_argument("--steps", type=int, default=10_000)
    engines = commands.add_parser("engines", help="engines of real vLLM servers are killed")
    engines.add_argument("--minutes", type=float, default=15.0)
    engines.add_argument("--every", type=float, default=60.0, help="seconds between two kills")
    engines.add_argument("--seed", type=int, default=0)
    engines.add_argument(
        "--python", default=os.environ.get("OGRPO_VLLM_PYTHON"), help="the interpreter with vLLM"
    )
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
    return min(1, COMMANDS[options.command](options))


# Imported in the functions: JAX reads the environment then.
def run_kills(options: argparse.Namespace) -> int:
    """Runs that are killed."""
    from benchmarks.chaos import kills
    from benchmarks.chaos.schedules import SCHEDULES

    names = options.only or [*SCHEDULES]
    if unknown := [name for name in names if name not in SCHEDULES]:
        sys.exit(f"there is no schedule {unknown[0]!r}; there are {', '.join(SCHEDULES)}")
    how = (options.runs, options.seed, names, options.most)
    return kills.study(*how, writes=options.writes)


def run_storm(options: argparse.Namespace) -> int:
    """A run under blows."""
    from benchmarks.chaos import storm

    if bool(options.urls) != bool(options.model):
        sys.exit("give --urls and --model together")
    how = (options.blows, options.pause, options.seed, options.urls, options.model)
    return storm.study(60 * options.minutes, *how)


def run_soak(options: argparse.Namespace) -> int:
    """A long run."""
    from benchmarks.chaos import soak

    return soak.study(options.steps)


def run_engines(options: argparse.Namespace) -> int:
    """A run over vLLM servers whose engines are killed."""
    from benchmarks.chaos import engines

    if options.python is None:
        sys.exit("give --python, an interpreter that has vLLM (or OGRPO_VLLM_PYTHON)")
    return engines.study(options.minutes, options.every, options.python, options.seed)


COMMANDS = {"kills": run_kills, "storm": run_storm, "soak": run_soak, "engines": run_engines}


if __name__ == "__main__":
    sys.exit(main())
