"""Releases: one folder per version, which appears whole or not at all.

    v000017/manifest.json       names, dtypes, shapes, sha256
            model.safetensors   every tensor
    a000017/...                 the same of adapters: A and B, with their scale in the manifest

A release is written beside its final name, flushed, and renamed; old ones are deleted when newer
ones stand.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogrpo.rollout.extension.ogrpo_releases import MANIFEST, MODEL
from ogrpo.rollout.weights import tensors as files
from ogrpo.rollout.weights.tensors import Tensors
from ogrpo.system.files import sync_folder


@dataclass(frozen=True)
class Release:
    """A version on the disk."""

    version: int
    folder: Path
    sha256: str
    manifest_sha256: str
    bytes: int
    seconds: float


class Store:
    """Writes releases into a folder.

    Args:
        folder: created if need be; a server that loads from it must see the same path.
        keep: releases that stay on the disk; at least 2, as a server may still be reading the last.
        letter: what releases' names begin with; stores of one folder have letters of their own.
    """

    def __init__(self, folder: Path, *, keep: int = 2, letter: str = "v") -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; give at least 2: a server may be reading the last")
        self.folder = folder.resolve()
        self._keep, self._letter = keep, letter
        self._written: list[Path] = []
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(
        self, tensors: Tensors, version: int, *, about: Mapping[str, Any] | None = None
    ) -> Release:
        """Makes a release, whose manifest says what `about` says, too.

        Raises:
            ValueError: an element is not finite, or a dtype cannot be written.
        """
        start = time.perf_counter()
        files.check_finite(tensors)
        scratch = self.folder / f".{self._letter}{version:06d}.{os.getpid()}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        sha256, size = files.write(scratch / MODEL, tensors)
        manifest = {
            "format": 1,
            "version": version,
            "sha256": sha256,
            "bytes": size,
            "tensors": files.describe(tensors),
            **(about or {}),
        }
        raw = json.dumps(manifest, indent=1).encode()
        _write_bytes(scratch / MANIFEST, raw)
        folder = self._put(scratch, version)
        self._written = [*(each for each in self._written if each != folder), folder]
        self._retain()
        return Release(
            version=version,
            folder=folder,
            sha256=sha256,
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
            bytes=size,
            seconds=time.perf_counter() - start,
        )

    def withdraw(self, release: Release) -> None:
        """Deletes a release that no server took."""
        shutil.rmtree(release.folder, ignore_errors=True)

    def _put(self, scratch: Path, version: int) -> Path:
        folder = self.folder / f"{self._letter}{version:06d}"
        if folder.exists():
            # The same version again, as after a resume: the old one must not be half replaced.
            stale = self.folder / f".stale.{os.getpid()}"
            folder.rename(stale)
            scratch.rename(folder)
            shutil.rmtree(stale)
        else:
            scratch.rename(folder)
        sync_folder(self.folder)
        return folder

    def _retain(self) -> None:
        """Deletes all but the releases written last, in the order of writing: clocks jump."""
        folders = {
            folder for folder in self.folder.glob(f"{self._letter}[0-9]*") if folder.is_dir()
        }
        self._written = [folder for folder in self._written if folder in folders]
        others = sorted(folders.difference(self._written))  # of a process before this one
        for folder in [*others, *self._written][: -self._keep]:
            shutil.rmtree(folder)


def _write_bytes(file: Path, raw: bytes) -> None:
    with file.open("wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())
