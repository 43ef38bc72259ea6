"""Runs that are killed with SIGKILL and resumed end as those that nobody disturbed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = 3


@pytest.mark.slow
def test_killed_at_random_and_resumed_a_run_repeats_its_records_weights_and_data():
    """With the same seed the kill comes at the same change of a file again."""
    how = ["--runs", "1", "--most", "1", "--writes", "--seed", str(SEED), "--only", "together"]
    words = [sys.executable, "-m", "benchmarks.chaos", "kills", *how]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {SEED}" in done.stdout
    summary = re.search(r"(\d+) of (\d+) runs, killed (\d+) times", done.stdout)
    assert summary is not None, done.stdout
    assert summary.groups() == ("1", "1", "1"), done.stdout
