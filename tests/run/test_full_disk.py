"""A disk that is full in the middle of each kind of write loses nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = {
    "config": "config.json",
    "metrics": "metrics.jsonl",
    "segment": "experience",
    "checkpoint": "checkpoints",
    "model": "model",
    "report": "report.html",
}


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_run_whose_disk_was_full_in_every_kind_of_write_ends_as_one_whose_was_not(tmp_path):
    if not can_mount():
        pytest.skip("FULL DISKS ARE NOT TESTED HERE: no unshare -rm, so no small tmpfs to fill")
    small = tmp_path / "small"
    small.mkdir()
    worker = [sys.executable, "-m", "tests.run.full_disk_worker"]
    done = subprocess.run(
        ["unshare", "-rm", *worker, str(small), str(tmp_path / "whole")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    for kind, name in NAMED.items():
        said = report["said"][kind]
        assert "o space left on device" in said or "RESOURCE_EXHAUSTED" in said, (kind, said)
        assert name in said, (kind, said)
        assert "free space there" in said, (kind, said)
        assert (f"--run-dir {small / 'run'} --resume" in said) == (kind != "config"), (kind, said)
    assert report["said"]["none"] == ""
    assert report["alike"]
