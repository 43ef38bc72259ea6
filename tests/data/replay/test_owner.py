"""A buffer's folder belongs to one process, and inside a run to the run's."""

import subprocess
import sys

import pytest

from ogrpo.data.replay import BufferLimits, Fifo, ReplayBuffer
from ogrpo.system import lock
from tests.data.replay.make import LAYOUT, experience
from tests.system.test_lock import holder

SECOND = """
import sys
from pathlib import Path
from ogrpo.data.replay import BufferLimits, Fifo, ReplayBuffer
from tests.data.replay.make import LAYOUT
try:
    ReplayBuffer.open(Path(sys.argv[1]), LAYOUT, BufferLimits(), Fifo, state=None)
    print("it was let in")
except ValueError as error:
    print(error)
"""


def second(folder) -> str:
    command = [sys.executable, "-c", SECOND, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_two_processes_do_not_share_a_folder(tmp_path):
    buffer = ReplayBuffer(LAYOUT, BufferLimits(), Fifo, folder=tmp_path, segment_groups=1)
    buffer.insert([experience(1)])
    assert "is in use by process" in second(tmp_path)
    again = ReplayBuffer.open(tmp_path, LAYOUT, BufferLimits(), Fifo, state=None)
    assert len(again) == 1  # this process may open it again


def test_a_runs_folder_is_not_opened_beside_the_run(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(ValueError, match=f"in use by process {process.pid}"):
            ReplayBuffer(LAYOUT, BufferLimits(), Fifo, folder=tmp_path / "experience")
        process.kill()
    with lock.held(tmp_path, "the run"):
        ReplayBuffer(LAYOUT, BufferLimits(), Fifo, folder=tmp_path / "experience")
        assert not lock.belongs_here(tmp_path / "experience")
