"""Every heavy suite of docs/reliability.md in full, one after the other: about three hours.

python -m benchmarks.reliability            all of them
python -m benchmarks.reliability kills soak these alone
python -m benchmarks.reliability --command 'python train.py --out {run}' \
    --resume 'python train.py --out {run} --resume' --metrics '{run}/metrics.jsonl'
                                            another trainer, killed and resumed (chaos/foreign.py)
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = {
    "kills": "-m benchmarks.chaos kills --runs 30 --seed 0",
    "storm": "-m benchmarks.chaos storm --minutes 30 --seed 0",
    "soak": "-m benchmarks.chaos soak --steps 10000",
    "judges": "-m benchmarks.fuzz_judges",
    "files": "-m pytest -q tests/fuzz",
    "intervals": "-m benchmarks.interval_coverage",
}
LONG = {"OGRPO_FUZZ": "100000"}


def run(name: str) -> tuple[str, int, float]:
    """A suite's name, its exit status and its seconds."""
    print(f"\n===== {name}: python {SUITES[name]}", flush=True)
    begin = time.monotonic()
    words = [sys.executable, *shlex.split(SUITES[name])]
    done = subprocess.run(words, cwd=ROOT, env={**LONG, **os.environ}, check=False)
    return name, done.returncode, time.monotonic() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    foreign = parser.add_argument_group("another trainer")
    foreign.add_argument("--command", help="trains; {run} is the folder of a run")
    foreign.add_argument("--resume", help="goes on with its run; default: the same command")
    foreign.add_argument("--metrics", help="its file of JSON lines, each with `step`")
    foreign.add_argument("--ignore", nargs="*", default=(), help="parts of names that may differ")
    foreign.add_argument("--runs", type=int, default=3, help="that are killed")
    foreign.add_argument("--seed", type=int, default=0, help="of the kills")
    typed = parser.parse_args(arguments)
    if typed.command is not None:
        if typed.metrics is None or typed.suites:
            parser.error("--command needs --metrics, and no suite beside it")
        from benchmarks.chaos.foreign import Trainer, study

        resume = typed.resume or typed.command
        trainer = Trainer(typed.command, resume, typed.metrics, tuple(typed.ignore))
        return min(1, study(trainer, runs=typed.runs, seed=typed.seed))
    for name in ("resume", "metrics", "ignore", "runs", "seed"):
        if getattr(typed, name) != parser.get_default(name):
            parser.error(f"--{name} is of another trainer alone, whose --command is not given")
    suites = typed.suites or [*SUITES]
    if unknown := [name for name in suites if name not in SUITES]:
        parser.error(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    results = [run(name) for name in suites]
    print()
    for name, status, seconds in results:
        print(f"{name:10} {'passed' if status == 0 else f'FAILED ({status})':12} {seconds:7.0f} s")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    raise SystemExit(main())
