"""A run on a file system of its own that is full, again and again, in the middle of a write.

`unshare -rm python -m tests.run.full_disk_worker FOLDER WHOLE` mounts a small tmpfs at FOLDER,
runs there and, undisturbed, in WHOLE, and prints what each error said and whether both ended alike.
The writes are the real ones; the only thing that is put between is what fills the disk before them.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ogrpo.cli.main import last_words
from ogrpo.data.replay import segments
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.report import run_page
from ogrpo.report.run_dir import MetricsWriter, RunDir
from ogrpo.run import ending
from tests.run.small_run import CONFIG, go, left

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


def fill(folder: Path, room: int) -> None:
    """Leaves so many bytes of the file system at a folder."""
    filler = folder / "filler"
    filler.write_bytes(b"")
    free = os.statvfs(folder)
    with filler.open("wb") as file:
        file.write(b"0" * (free.f_bavail * free.f_bsize - room))


def attempt(folder: Path, kind: str) -> str:
    """A session whose disk is full whenever this kind is written; what the terminal would show."""
    owner, name, room = KINDS[kind]
    real = getattr(owner, name)

    def full(*arguments: Any, **options: Any) -> Any:
        fill(folder, room)
        return real(*arguments, **options)

    run = folder / "run"
    try:
        with patch.object(owner, name, full):
            go(run, SHORT, resume=(run / "config.json").exists())
    except Exception as error:
        return last_words(error)
    finally:
        (folder / "filler").unlink(missing_ok=True)
    return ""


def main(folder: Path, whole: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    said = {kind: attempt(folder, kind) for kind in KINDS}
    go(folder / "run", SHORT, resume=True)
    go(whole, SHORT)
    print(json.dumps({"said": said, "alike": left(folder / "run") == left(whole)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
