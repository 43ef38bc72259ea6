"""The server's side: names that vLLM sees, and temporary folders, which go with their owners."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ogrpo.rollout import extension
from ogrpo.rollout.extension.ogrpo_releases import Scratch, remove_stale

NAMES = """
import ogrpo_weight_sync
print(*[name for name in dir(ogrpo_weight_sync.WeightSync) if not name.startswith("__")])
"""


def test_the_extension_shares_no_name_with_a_worker():
    """vLLM refuses one that does; every public name is its own."""
    folder = Path(extension.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", NAMES], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ogrpo_describe"]


OWNER = """
import sys, time
from ogrpo.rollout.extension.ogrpo_releases import Scratch
scratch = Scratch("ogrpo-test-")
(scratch.folder / "model").write_bytes(b"weights")
print(scratch.folder, flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def owner(how):
    return subprocess.Popen([sys.executable, "-c", OWNER, how], stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_left_is_deleted_and_what_a_living_one_uses_is_not():
    with owner("wait") as dead, owner("wait") as living:
        left, used = (Path(process.stdout.readline().strip()) for process in (dead, living))
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert (left / "model").is_file()
        mine = Scratch("ogrpo-test-")
        assert not left.exists()
        assert (used / "model").is_file()
        remove_stale("ogrpo-test-")  # not even its own
        assert mine.folder.is_dir()
        living.kill()
