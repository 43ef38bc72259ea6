"""A run on a file system of its own that is full, again and again, in the middle of a write.

`unshare -rm python -m tests.run.full_disk_worker FOLDER WHOLE` mounts a small tmpfs at FOLDER,
runs there and, undisturbed, in WHOLE, and prints what each error said and whether both ended alike.
The writes are the real ones; the only thing that is put between is what fills the disk before them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    "config": (RunDir, "write_config", 0),
    "metrics": (MetricsWriter, "write", 0),
    "segment": (segments, "write", 4096),
    "checkpoint": (Checkpoints, "save", 256 << 10),
    "model": (ending, "save_model", 128 << 10),
    "report": (run_page, "write_text", 4096),
}
"""Who writes, and the bytes that are left for it."""


class Disk:
    """The small file system."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / "filler"

    def fill(self, room: int) -> None:
        """Leaves so many bytes."""
        self.filler.write_bytes(b"")
        free = os.statvfs(self.folder)
        with self.filler.open("wb") as file:
            file.write(b"0" * (free.f_bavail * free.f_bsize - room))

    def clear(self) -> None:
        """Frees what was filled."""
        self.filler.unlink(missing_ok=True)


def filling(disk: Disk, kind: str) -> Callable[[], None]:
    """Has the disk full whenever this kind is written; returns what ends that."""
    owner, name, room = KINDS[kind]
    real = getattr(owner, name)

    def full(*arguments: Any, **options: Any) -> Any:
        disk.fill(room)
        return real(*arguments, **options)

    setattr(owner, name, full)
    return lambda: setattr(owner, name, real)


def attempt(run: Path) -> str:
    """A session; what the terminal would show of the error that ended it."""
    try:
        go(run, SHORT, resume=(run / "config.json").exists())
    except Exception as error:
        return last_words(error)
    return ""


def main(folder: Path, whole: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    disk, run, said = Disk(folder), folder / "run", {}
    for kind in KINDS:
        restore = filling(disk, kind)
        said[kind] = attempt(run)
        restore()
        disk.clear()
    said["none"] = attempt(run)
    go(whole, SHORT)
    print(json.dumps({"said": said, "alike": left(run) == left(whole)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
