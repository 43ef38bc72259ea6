"""The cache of compiled programs survives a process that was killed while it wrote one."""

import os
import zlib
from pathlib import Path

from ogrpo.setup.cache import SWEPT, drop_torn

PROGRAM = zlib.compress(bytes(range(256)) * 40)


def write(folder: Path, **programs: bytes) -> None:
    folder.mkdir(exist_ok=True)
    for name, program in programs.items():
        (folder / f"{name}-cache").write_bytes(program)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*-cache")}


def test_programs_without_their_end_are_dropped_and_the_others_stay(tmp_path):
    flipped = bytearray(PROGRAM)
    flipped[len(PROGRAM) // 2] ^= 1
    torn = {"cut": PROGRAM[:-1], "empty": b"", "flipped": bytes(flipped)}
    write(tmp_path, whole=PROGRAM, other=b"\x28\xb5", **torn)
    assert drop_torn(tmp_path) == 3
    assert names(tmp_path) == {"whole-cache", "other-cache"}


def test_only_what_was_written_since_is_looked_at(tmp_path):
    write(tmp_path, old=PROGRAM)
    drop_torn(tmp_path)
    write(tmp_path, old=PROGRAM[:9], new=PROGRAM[:9])
    before = (tmp_path / SWEPT).stat().st_mtime - 60
    os.utime(tmp_path / "old-cache", (before, before))
    assert drop_torn(tmp_path) == 1
    assert names(tmp_path) == {"old-cache"}
