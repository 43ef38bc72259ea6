"""Releases of weights: written whole or not at all, shared behind HTTP.

    v000017/manifest.json       names, dtypes, shapes, sha256
            model.safetensors   every tensor

A release is written beside its final name, flushed, and renamed; old ones are deleted when newer
ones stand. The layout of a file is a function of names, dtypes and shapes alone, so that two
versions of a model differ in tensor bytes only.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - by which numpy knows bfloat16
import numpy as np

from ogrpo.rollout.address import url_of
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.extension.ogrpo_releases import MANIFEST, MODEL
from ogrpo.rollout.http_server import BadRequest, Handler, HttpServer
from ogrpo.system.files import sync_folder

Tensors = Mapping[str, np.ndarray]
NAMES = {np.dtype(dtype): name for name, dtype in releases.DTYPES.items()}
_CHUNK = 1 << 22
_RELEASE = r"v\d{6,}"
_RELEASE_FILE = re.compile(rf"/({_RELEASE})/({re.escape(MANIFEST)}|{re.escape(MODEL)})")


def describe(tensors: Tensors) -> dict[str, dict[str, Any]]:
    """Returns dtype and shape of each tensor by name, sorted.

    Raises:
      ValueError: a dtype cannot be written.
    """
    for name, array in tensors.items():
        if array.dtype not in NAMES:
            raise ValueError(f"{name} is {array.dtype}; supported: {', '.join(map(str, NAMES))}")
    return {
        name: {"dtype": NAMES[array.dtype], "shape": list(array.shape)}
        for name, array in sorted(tensors.items())
    }


def write(file: Path, tensors: Tensors) -> tuple[str, int]:
    """Writes a safetensors file, flushed to the disk; returns its sha256 and its size in bytes.

    Pieces are hashed in a thread while the disk writes them.
    """
    sha256, size = hashlib.sha256(), 0
    with ThreadPoolExecutor(1) as hashing, file.open("wb") as out:
        for piece in _pieces(tensors):
            hashing.submit(sha256.update, piece)
            out.write(piece)
            size += len(piece)
        out.flush()
        os.fsync(out.fileno())
    return sha256.hexdigest(), size


def _pieces(tensors: Tensors) -> Iterator[memoryview]:
    """Yields a little-endian u64, so many bytes of JSON with offsets, then the tensors' bytes."""
    header, offset = describe(tensors), 0
    for name, entry in header.items():
        entry["data_offsets"] = [offset, offset + tensors[name].nbytes]
        offset += tensors[name].nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in header:
        raw = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data
        yield from (raw[start : start + _CHUNK] for start in range(0, len(raw), _CHUNK))


@dataclass(frozen=True)
class Release:
    """A version on the disk; `bytes` of its model file, `seconds` that writing it took."""

    version: int
    folder: Path
    sha256: str
    manifest_sha256: str
    bytes: int
    seconds: float


class NotFinite(ValueError):
    """Weights that no server gets."""


class Store:
    """Writes releases into a folder.

    Args:
      folder: created if need be; a server that loads from it must see the same path.
      keep: releases that stay on the disk; at least 2, as a server may still be reading the last.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(f"keep is {keep}; give at least 2: a server may be reading the last")
        self.folder = folder.resolve()
        self._keep = keep
        self._written: list[Path] = []
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, tensors: Tensors, version: int) -> Release:
        """Makes a release.

        Raises:
          NotFinite: an element is not finite.
          ValueError: a dtype cannot be written.
        """
        start = time.perf_counter()
        entries = describe(tensors)
        for name, array in tensors.items():
            elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            if not releases.finite(elements, entries[name]["dtype"]):
                raise NotFinite(
                    f"{name} has NaN or infinite elements; the policy has diverged: nothing was"
                    " sent"
                )
        scratch, stale = self.folder / ".ogrpo-new", self.folder / ".ogrpo-old"
        for left in (scratch, stale):  # of a write that was cut off
            shutil.rmtree(left, ignore_errors=True)
        scratch.mkdir()
        try:
            sha256, size = write(scratch / MODEL, tensors)
            manifest = {
                "format": 1,
                "version": version,
                "sha256": sha256,
                "bytes": size,
                "tensors": entries,
            }
            raw = json.dumps(manifest, indent=1).encode()
            with (scratch / MANIFEST).open("wb") as out:
                out.write(raw)
                out.flush()
                os.fsync(out.fileno())
            folder = self.folder / f"v{version:06d}"
            if folder.exists():  # as after a resume: the old one must not be half replaced
                folder.rename(stale)
            scratch.rename(folder)
        finally:  # a full disk gets the room back, which a checkpoint may need
            shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(stale, ignore_errors=True)
        sync_folder(self.folder)
        # All but the releases written last go, in the order of writing: clocks jump.
        holders = (path.parent for path in self.folder.glob(f"v*/{MANIFEST}"))
        folders = {path for path in holders if re.fullmatch(_RELEASE, path.name)}
        self._written = [path for path in self._written if path in folders - {folder}] + [folder]
        others = sorted(folders.difference(self._written))  # of a process before this one
        for old in [*others, *self._written][: -self._keep]:
            old.rename(stale)  # half deleted, it would look like none of ours
            shutil.rmtree(stale)
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


class WeightShare:
    """Serves a store's releases to servers that share no filesystem with the trainer.

    It is read-only, behind a token, and nothing but the two files of a release can be had from it.

    Args:
      folder: the store's.
      host: the interface to listen on, which servers on other machines must reach.
      advertised: the host name in the URL that servers get; `host` by default.

    Raises:
      ValueError: this machine has no such interface.
    """

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", advertised: str | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        try:
            self._server = HttpServer((host, 0), self._handler(folder.resolve()))
        except OSError as error:
            raise ValueError(
                f"weights cannot be offered on the interface {host!r:.80} ({error}): set `listen`"
                " to an address of this machine, or to 0.0.0.0 for all of them"
            ) from error
        self.url = url_of(advertised or host, self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.close()
        self._thread.join()

    def _handler(self, folder: Path) -> type[Handler]:
        expected = f"Bearer {self.token}".encode()

        class ShareHandler(Handler):
            def do_GET(self) -> None:
                try:
                    self.read_body()
                    credentials = self.headers.get("Authorization", "").encode()
                    if not hmac.compare_digest(credentials, expected):
                        raise BadRequest("the token is not this share's", HTTPStatus.UNAUTHORIZED)
                    match = _RELEASE_FILE.fullmatch(self.path)
                    if match is None:
                        raise FileNotFoundError
                    opened = (folder / match[1] / match[2]).open("rb")
                except FileNotFoundError:  # it may be older than those that are kept
                    self.refuse(BadRequest("there is no such file", HTTPStatus.NOT_FOUND))
                except BadRequest as error:
                    self.refuse(error)
                else:
                    with opened:
                        size = os.fstat(opened.fileno()).st_size
                        self.start_answer(HTTPStatus.OK, {"Content-Length": str(size)})
                        shutil.copyfileobj(opened, self.wfile, 1 << 20)

        return ShareHandler
