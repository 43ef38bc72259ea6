"""Kernels over eight host devices, in a process of their own: this one has a single device."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_a_mesh_changes_neither_values_nor_gradients():
    command = [sys.executable, "-W", "error", "-m", "tests.kernels.sharded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"]
