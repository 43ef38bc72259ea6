"""A folder belongs to one process, by whom others are told, until that process ends."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from ogrpo.system import lock

HOLD = """
import sys, time
from pathlib import Path
from ogrpo.system import lock
lock.take(Path(sys.argv[1]), "ogrpo train --seed 7")
print("held", flush=True)
time.sleep(600)
"""


def holder(folder):
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_is_refused_by_name_until_the_holder_dies(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(lock.FolderInUse, match=rf"process {process.pid} on .*train --seed 7"):
            lock.take(tmp_path, "mine")
        assert not lock.belongs_here(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with lock.held(tmp_path, "mine"):
        assert lock.belongs_here(tmp_path)
        with pytest.raises(lock.FolderInUse, match=f"process {os.getpid()} on"):  # nor twice in one
            lock.take(tmp_path, "again")
    assert not lock.belongs_here(tmp_path)


FORK = """
import os, sys
from pathlib import Path
from ogrpo.system import lock
folder, ready, go_on = Path(sys.argv[1]), os.pipe(), os.pipe()
with lock.held(folder, "parent"):
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
try:
    with lock.held(folder, "after the parent let go, while the child lives"):
        print("held")
finally:
    os.write(go_on[1], b".")
    os.waitpid(child, 0)
"""


def test_a_fork_does_not_hold_what_its_parent_held(tmp_path):
    """In a process of its own: JAX, which other tests import here, warns of forks."""
    words = [sys.executable, "-c", FORK, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "held\n"


def test_a_file_system_without_locks_says_so(tmp_path, monkeypatch):
    refused = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # no such system is at hand here
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=refused))
    with pytest.raises(lock.NoLocks, match=lock.NAME):
        lock.take(tmp_path, "mine")
    assert not lock.belongs_here(tmp_path)
    lines = []
    with lock.held(tmp_path, "mine", lines.append):
        assert not lock.belongs_here(tmp_path)
    assert lines == [f"{tmp_path} has no locks ({refused.strerror}): let one process use it"]
