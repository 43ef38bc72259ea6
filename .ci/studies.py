"""Runs two of the studies with --quick, side by side; the number of commits says whose turn it is.

python .ci/studies.py SCRATCH_FOLDER
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from experiments.run import GRIDS  # noqa: E402

SECONDS = 900
NAMES = [name for name in GRIDS if name != "real"]
"""`real --quick` takes over six minutes; the section before trains its model."""
UNOPTIMISED = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)
"""Nearly all of the time would be spent on code that runs a few times."""


def in_turn(names: list[str], commits: int) -> list[str]:
    """Two of the names; each comes up once in as many commits as there are pairs."""
    return sorted({names[(2 * commits + n) % len(names)] for n in (0, 1)})


def main(scratch: Path) -> int:
    """Runs them; returns 1 if one failed."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    selection = in_turn(NAMES, int(counted.stdout))
    print(
        f"studies with --quick, in turn: {', '.join(selection)} of {', '.join(NAMES)}", flush=True
    )
    begun, running = time.monotonic(), {}
    for name in selection:
        options = ["--quick", "--jobs", "1", "--run-dir", str(scratch / name)]
        command = [sys.executable, "-m", "experiments.run", name, *options]
        running[name] = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"XLA_FLAGS": UNOPTIMISED, **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    failed = [name for name, process in running.items() if not went_well(name, process, scratch)]
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    return bool(failed)


def went_well(name: str, process: subprocess.Popen[str], scratch: Path) -> bool:
    """Whether a study ended well and left its page; says what it said if not."""
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + f"\nlonger than {SECONDS} s"
    page = scratch / name / "report.html"
    if process.returncode == 0 and page.is_file():
        return True
    print(f"----- {name} --quick: exit code {process.returncode}\n{output}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
