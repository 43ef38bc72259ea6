"""A disk that is full in the middle of each kind of write loses nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.full_disk_worker import KINDS

ROOT = Path(__file__).parents[2]


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
    assert {*report["said"]} == {*KINDS}
    for name, said in report["said"].items():
        assert "o space left on device" in said or "RESOURCE_EXHAUSTED" in said, (name, said)
        assert name in said, said
        assert "free space there" in said, (name, said)
        resumed = f"--run-dir {small / 'run'} --resume" in said
        assert resumed == (name != "config.json"), (name, said)
    assert report["alike"]
