"""What a folder's files were when it was written: their sizes and SHA-256, in a file beside them.

SHA-256 and not a shorter sum: processors compute it faster than disks write, and no two contents
share one, so that it says which bytes are meant wherever a copy lies.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ogrpo.system.files import read_json, replacing, sync_folder

NAME = "manifest.json"
FORMAT = 1


def write_manifest(folder: Path, about: dict[str, Any]) -> None:
    """Syncs every file of a folder to disk, then writes their sizes and SHA-256 beside them.

    Args:
      folder: whole, and written to by nobody else.
      about: what else the manifest is to say.
    """
    files = {}
    for path in sorted(_files(folder)):
        with path.open("rb") as file:
            files[path.relative_to(folder).as_posix()] = _sum(file)
            os.fsync(file.fileno())
    for inner, _, _ in os.walk(folder):
        sync_folder(Path(inner))
    with replacing(folder / NAME) as file:
        file.write(_text({"format": FORMAT, **about, "files": files}))


def has_manifest(folder: Path) -> bool:
    """Whether the folder has a manifest."""
    return (folder / NAME).exists()


def damage(folder: Path, about: dict[str, Any]) -> str | None:
    """Returns the first difference between a folder and its manifest, or None.

    Args:
      folder: with a manifest.
      about: what the manifest must say beside the files.
    """
    try:
        manifest = read_json(folder / NAME)
        if (folder / NAME).read_bytes() != _text(manifest).encode():
            return f"{NAME} was changed after it was written"
        if {**manifest, "files": None} != {"format": FORMAT, **about, "files": None}:
            return f"{NAME} is of another checkpoint"
        return next(
            filter(None, (_changed(folder, *item) for item in manifest["files"].items())), None
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{NAME} cannot be read: {error}"


def _changed(folder: Path, name: str, expected: dict[str, Any]) -> str | None:
    try:
        with (folder / name).open("rb") as file:
            actual = _sum(file)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if actual == expected:
        return None
    if actual["bytes"] != expected["bytes"]:
        return f"{name} has {actual['bytes']:,} bytes of {expected['bytes']:,}"
    return f"{name} has other bytes than were written (SHA-256)"


def _files(folder: Path) -> list[Path]:
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names]


def _sum(file: Any) -> dict[str, Any]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": digest}


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
