"""Releases: one folder per version, which appears whole or not at all.

    v000017/manifest.json       names, dtypes, shapes, sha256
            model.safetensors   every tensor
            delta.safetensors   what changed since the release before, where that is small
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

from ogrpo.files import sync_folder
from ogrpo.rollout.weights import delta as deltas
from ogrpo.rollout.weights import tensors as files
from ogrpo.rollout.weights.tensors import Tensors

MANIFEST, MODEL, DELTA = "manifest.json", "model.safetensors", "delta.safetensors"
WORTH_A_DELTA = 0.5


@dataclass(frozen=True)
class Release:
    """A version on the disk."""

    version: int
    folder: Path
    sha256: str
    manifest_sha256: str
    bytes: int
    delta_bytes: int | None
    """Bytes of the delta; None where there is none."""
    changed_share: float | None
    """Share of elements that changed since the release before; None without one to compare with."""
    seconds: float


class Store:
    """Writes releases into a folder.

    Args:
        folder: created if need be; a server that loads from it must see the same path.
        keep: releases that stay on the disk; at least 2, as a server may still be reading the last.
        delta: whether to look for what changed since the release before.
        letter: what releases' names begin with; stores of one folder have letters of their own.
    """

    def __init__(
        self, folder: Path, *, keep: int = 2, delta: bool = True, letter: str = "v"
    ) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; give at least 2: a server may be reading the last")
        self.folder = folder.resolve()
        self._keep, self._letter = keep, letter
        self._delta = delta
        self._written: list[Path] = []
        self._last: Release | None = None
        self._before: Release | None = None
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
        delta, share = self._write_delta(scratch, tensors, size)
        manifest = {
            "format": 1,
            "version": version,
            "sha256": sha256,
            "bytes": size,
            "tensors": files.describe(tensors),
            "delta": delta,
            **(about or {}),
        }
        raw = json.dumps(manifest, indent=1).encode()
        _write_bytes(scratch / MANIFEST, raw)
        folder = self._put(scratch, version)
        self._written = [*(each for each in self._written if each != folder), folder]
        self._before, self._last = (
            self._last,
            Release(
                version=version,
                folder=folder,
                sha256=sha256,
                manifest_sha256=hashlib.sha256(raw).hexdigest(),
                bytes=size,
                delta_bytes=None if delta is None else delta["bytes"],
                changed_share=share,
                seconds=time.perf_counter() - start,
            ),
        )
        self._retain()
        return self._last

    def withdraw(self, release: Release) -> None:
        """Takes back the last release, which no server took; deltas go on from the one before."""
        if release == self._last:
            shutil.rmtree(release.folder)
            self._last, self._before = self._before, None

    def _write_delta(
        self, scratch: Path, tensors: Tensors, size: int
    ) -> tuple[dict[str, Any] | None, float | None]:
        last = self._last
        if not self._delta or last is None:
            return None, None
        found = deltas.changes(files.read(last.folder / MODEL), tensors)
        if found is None:
            return None, None
        share = deltas.changed_share(found, tensors)
        if deltas.size(found) > WORTH_A_DELTA * size:
            return None, share
        sha256, delta_size = files.write(scratch / DELTA, found)
        return {
            "base_version": last.version,
            "base_sha256": last.sha256,
            "sha256": sha256,
            "bytes": delta_size,
        }, share

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
        found = {folder for folder in self.folder.glob(f"{self._letter}[0-9]*") if folder.is_dir()}
        self._written = [folder for folder in self._written if folder in found]
        others = sorted(found.difference(self._written))  # of a process before this one
        for folder in [*others, *self._written][: -self._keep]:
            shutil.rmtree(folder)


def _write_bytes(file: Path, raw: bytes) -> None:
    with file.open("wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())
