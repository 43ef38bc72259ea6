"""Kernels over eight host devices, each in a process of its own: this one has a single device."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("operation", ["attention", "log_probs"])
def test_a_mesh_changes_neither_values_nor_gradients(operation):
    command = [sys.executable, "-W", "error", "-m", f"tests.kernels.{operation}.sharded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "equal"
