"""A disk that is full in the middle of each kind of write loses nothing.

`unshare -rm python -m tests.run.test_full_disk FOLDER WHOLE` mounts a small tmpfs at FOLDER, runs
there and, undisturbed, in WHOLE, and prints what each error said and whether both ended alike. The
writes are the real ones; the only thing that is put between is what fills the disk before them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ogrpo.cli.main import last_words
from ogrpo.data.replay import segments
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.report import run_page
from ogrpo.report.run_dir import MetricsWriter, RunDir
from ogrpo.run import ending
from tests.run.small_run import CONFIG, go, left

ROOT = Path(__file__).parents[2]
SHORT = replace(CONFIG, schedule=replace(CONFIG.schedule, steps=2))
SIZE = 32 << 20
KINDS: dict[str, tuple[Any, str, int]] = {
    "config.json": (RunDir, "write_config", 0),
    "metrics.jsonl": (MetricsWriter, "write", 0),
    "experience": (segments, "write", 4096),
    "checkpoints": (Checkpoints, "save", 256 << 10),
    "model": (ending, "save_model", 128 << 10),
    "report.html": (run_page, "write_text", 4096),
}
"""What is written -> who writes it, and the bytes that are left for it."""


def attempt(folder: Path, kind: str) -> str:
    """A session whose disk is full whenever this kind is written; what the terminal would show."""
    owner, name, room = KINDS[kind]
    real, run, filler = getattr(owner, name), folder / "run", folder / "filler"

    def full(*arguments: Any, **options: Any) -> Any:
        filler.write_bytes(b"")
        free = os.statvfs(folder)
        filler.write_bytes(b"0" * (free.f_bavail * free.f_bsize - room))
        return real(*arguments, **options)

    try:
        with patch.object(owner, name, full):
            go(run, SHORT, resume=(run / "config.json").exists())
    except Exception as error:
        return last_words(error)
    finally:
        filler.unlink(missing_ok=True)
    return ""


@pytest.mark.slow
def test_a_run_whose_disk_was_full_in_every_kind_of_write_ends_as_one_whose_was_not(tmp_path):
    unshared = ["unshare", "-rm"]  # a file system that nobody else sees
    mounted = [*unshared, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("FULL DISKS ARE NOT TESTED HERE: no unshare -rm, so no small tmpfs to fill")
    small = tmp_path / "small"
    small.mkdir()
    here = [sys.executable, "-m", "tests.run.test_full_disk", str(small), str(tmp_path / "whole")]
    done = subprocess.run([*unshared, *here], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert {*report["said"]} == {*KINDS}
    for name, said in report["said"].items():
        assert "o space left on device" in said, (name, said)
        assert name in said, said
        assert "free space there" in said, (name, said)
        resumed = f"--run-dir {small / 'run'} --resume" in said
        assert resumed == (name != "config.json"), (name, said)
    why = r"\(No space left on device; \S+ MB are free for its \S+\)"
    assert len(re.findall(why, report["said"]["checkpoints"])) == 1
    assert report["alike"]


def main(folder: Path, whole: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    said = {kind: attempt(folder, kind) for kind in KINDS}
    go(folder / "run", SHORT, resume=True)
    go(whole, SHORT)
    print(json.dumps({"said": said, "alike": left(folder / "run") == left(whole)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
