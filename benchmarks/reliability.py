"""Every heavy suite of docs/reliability.md in full, one after the other: about three hours.

python -m benchmarks.reliability            all of them
python -m benchmarks.reliability kills soak these alone
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = {
    "kills": "-m benchmarks.chaos kills --runs 30 --seed 0",
    "storm": "-m benchmarks.chaos storm --minutes 30 --seed 0",
    "soak": "-m benchmarks.chaos soak --steps 10000",
    "buffer": "-m benchmarks.replay_load",
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


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    suites = parser.parse_args().suites or [*SUITES]
    if unknown := [name for name in suites if name not in SUITES]:
        parser.error(f"there is no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    results = [run(name) for name in suites]
    print()
    for name, status, seconds in results:
        print(f"{name:10} {'passed' if status == 0 else f'FAILED ({status})':12} {seconds:7.0f} s")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    raise SystemExit(main())
