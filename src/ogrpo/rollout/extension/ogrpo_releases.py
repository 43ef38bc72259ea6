"""Releases as a server sees them: fetched, checked, installed; by numpy and safetensors alone.

Shared by the vLLM worker extension beside it and by ogrpo's own protocol server; it must import
where neither ogrpo nor JAX is installed.
"""

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

MANIFEST, MODEL = "manifest.json", "model.safetensors"
LOCK = "lock"
PROTOCOL = 3
"""Of what a trainer and the worker extension say to one another; a server may have an older one."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CHUNK = 1 << 22
PIECE = 1 << 26
"""Bytes of a broadcast at a time, in a buffer on each GPU."""
PULL_SECONDS, LIMIT_SECONDS = 60.0, 540.0
"""For a piece, and for a whole file: less than a trainer waits for an update."""
MOST_MANIFEST = 1 << 26
EXPONENT = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}


class Refusal(Exception):
    """A push that must not reach the live model; `code` tells the trainer what it can do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Scratch:
    """A temporary folder that goes with this object, or, after a SIGKILL, when the next is made.

    Its owner holds a lock on the file `lock` in it, which the kernel lets go with the last of its
    processes. A process id would not do: containers share folders, but not ids.
    """

    def __init__(self, prefix: str) -> None:
        remove_stale(prefix)
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        fresh = self.folder / "lock.new"
        lock = fresh.open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        # It gets its name when it is held: nobody finds it free before.
        fresh.rename(self.folder / LOCK)
        self.remove = weakref.finalize(self, _remove, self.folder, lock)


def _remove(folder: Path, lock: BinaryIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def remove_stale(prefix: str) -> None:
    """Deletes temporary folders of this user whose owners have died."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            with (folder / LOCK).open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if ours:
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # it is in use, is just being made or deleted, or is somebody else's
            continue


@dataclass(frozen=True)
class Checked:
    """A release whose file can be read here and is whole."""

    file: Path
    version: int
    sha256: str
    manifest_sha256: str
    pulled: int
    """Bytes that moved over the network."""


class Workplace:
    """The memory of a server between two updates."""

    def __init__(self) -> None:
        self.instance = uuid.uuid4().hex
        self.live: Checked | None = None
        """The release in use; None for first weights, and for a model that may be half loaded."""
        self.staged: Checked | None = None
        self.last: dict[str, Any] | None = None
        """How the last update ended: vLLM's routes say nothing but 500."""
        self.joined: Any = None
        """The communicator of the last broadcast. It is left at the next update: before that,
        other workers may still be receiving by way of this one."""
        self._held = Scratch("ogrpo-sync-")
        self.scratch = self._held.folder

    def where(self) -> dict[str, Any]:
        """The version in use and how the last update ended, for an answer."""
        live = self.live
        known = {"version": -1, "sha256": ""}
        if live is not None:
            known = {"version": live.version, "sha256": live.sha256}
        return {**known, "instance": self.instance, "update": self.last}

    def stage(self, release: Checked | None) -> None:
        """Keeps a release until it is installed, in the place of one that never was."""
        self._drop(self.staged)
        self.staged = release

    def adopt(self, release: Checked, before: Checked | None) -> None:
        """Notes that the staged release is in use instead of another."""
        self.live, self.staged = release, None
        self._drop(before)

    def leave(self) -> None:
        """Leaves the communicator of the last broadcast."""
        joined, self.joined = self.joined, None
        if joined is not None:
            joined.close()

    def write(self, name: str, pieces: Iterator[Any]) -> Path:
        """A file of this server's own, whole or not at all."""
        target = self.scratch / f"{uuid.uuid4().hex}.{name}"
        try:
            with target.open("wb") as out:
                for piece in pieces:
                    out.write(piece)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target

    def _drop(self, release: Checked | None) -> None:
        if release is not None and release is not self.live:
            self.discard(release.file)

    def discard(self, file: Path) -> None:
        """Deletes a file that was fetched; one in a shared folder stays."""
        if file.is_relative_to(self.scratch):
            file.unlink(missing_ok=True)


class Folder:
    """A release in a folder that this process can read."""

    def __init__(self, folder: Path) -> None:
        root = os.environ.get("OGRPO_WEIGHTS_ROOT")
        if "\0" in str(folder):
            raise Refusal("refused", f"{str(folder)!r:.80} is no path")
        if root and not folder.resolve().is_relative_to(Path(root).resolve()):
            raise Refusal("refused", f"{folder} is outside OGRPO_WEIGHTS_ROOT={root}")
        self.folder = folder

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        try:
            with (self.folder / name).open("rb") as opened:
                return opened.read(MOST_MANIFEST)
        except OSError as error:
            raise Refusal("unreachable", f"{self.folder / name}: {error.strerror}") from error

    def fetch(self, name: str, size: int, place: Workplace) -> Path:  # noqa: ARG002
        """Returns where the file can be read: it stays where it is."""
        return self.folder / name


class _Straight(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_named: Any) -> None:
        return None


class Remote:
    """A release behind a URL, pulled with a token."""

    def __init__(self, url: str, token: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refusal("refused", f"{url} is no http(s) URL")
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def _unreachable(self, name: str, error: Exception) -> Refusal:
        if isinstance(error, urllib.error.HTTPError):
            # It holds the answer, and with it the connection.
            error.close()
        return Refusal("unreachable", f"{self.url}/{name}: {error}")

    def _open(self, name: str) -> Any:
        request = urllib.request.Request(f"{self.url}/{name}", headers=self.headers)
        # No proxy, and nobody whom a redirection names: weights come from the trainer's own
        # address, and the token goes there alone.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight)
        return opener.open(request, timeout=PULL_SECONDS)

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        try:
            with self._open(name) as reply:
                return b"".join(_pieces(reply, MOST_MANIFEST))
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._unreachable(name, error) from error

    def fetch(self, name: str, size: int, place: Workplace) -> Path:
        """Pulls a file into this server's scratch folder, and no more than its size."""
        try:
            with self._open(name) as reply:  # one byte more shows in the digest
                return place.write(name, _pieces(reply, size + 1))
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._unreachable(name, error) from error


ReceiveFn = Callable[[str, int], Any]
"""`(unique id, ranks)` -> a communicator with `read(size)`, the next bytes, and `close()`."""


class Broadcast:
    """A release that the trainer sends to all workers at once; its manifest comes with the update.

    Args:
        ticket: the texts `manifest` and `unique_id`, and the number of `ranks`.
        receive_fn: joins the trainer; None where nobody can.
    """

    def __init__(self, ticket: Any, receive_fn: ReceiveFn | None) -> None:
        if receive_fn is None:
            raise Refusal("refused", "no broadcasts are taken here: push by folder or by URL")
        entries = ticket if isinstance(ticket, dict) else {}
        manifest, unique_id, ranks = map(entries.get, ("manifest", "unique_id", "ranks"))
        if (
            not isinstance(manifest, str)
            or not isinstance(unique_id, str)
            or type(ranks) is not int
        ):
            raise Refusal("refused", f"broadcast is {ticket!r:.60}: give its three entries")
        self._manifest, self._join_fn = manifest, lambda: receive_fn(unique_id, ranks)

    def read(self, name: str) -> bytes:  # noqa: ARG002
        """The manifest."""
        return self._manifest.encode()

    def fetch(self, name: str, size: int, place: Workplace) -> Path:
        """Joins the trainer and writes what it sends into this server's scratch folder."""
        try:
            place.joined = joined = self._join_fn()
            sizes = (min(PIECE, size - start) for start in range(0, size, PIECE))
            return place.write(name, map(joined.read, sizes))
        except (OSError, RuntimeError, ValueError) as error:
            place.leave()
            raise Refusal("unreachable", f"the broadcast broke off: {error}") from error


def _pieces(reply: http.client.HTTPResponse, most: int) -> Iterator[bytes]:
    """Yields what a reply brings; raises where it ends too early, or takes too long."""
    whole = reply.length
    got, ends = 0, time.monotonic() + LIMIT_SECONDS
    # `read` would wait for a whole piece, and a drip for each of its bytes.
    while got < most and (piece := reply.read1(min(CHUNK, most - got))):
        if time.monotonic() > ends:
            raise TimeoutError(f"it did not come in full within {LIMIT_SECONDS:g} s")
        got += len(piece)
        yield piece
    if got < min(most, whole or 0):
        raise http.client.IncompleteRead(b"", (whole or 0) - got)


def obtain(
    place: Workplace,
    *,
    manifest_sha256: str,
    path: str | None = None,
    url: str | None = None,
    token: str | None = None,
    broadcast: Any = None,
    receive_fn: ReceiveFn | None = None,
) -> tuple[Path, dict[str, Any], int]:
    """A release's model file, its manifest, and the bytes that came over a network.

    Raises:
        Refusal: something is out of reach or is not what was announced.
    """
    for name, text in (("path", path), ("url", url), ("token", token)):
        if not isinstance(text, str | None):
            raise Refusal("refused", f"{name} is {text!r:.60}: give a text")
    if broadcast is not None:
        release = Broadcast(broadcast, receive_fn)
    else:
        release = Folder(Path(path)) if path is not None else Remote(str(url), token)
    manifest = _read_manifest(release, manifest_sha256)
    size = manifest["bytes"]
    file = _verified(release.fetch(MODEL, size, place), manifest["sha256"], place)
    return file, manifest, 0 if isinstance(release, Folder) else size


def _read_manifest(release: Folder | Remote | Broadcast, sha256: str) -> dict[str, Any]:
    raw = release.read(MANIFEST)
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise Refusal("digest", f"{MANIFEST} is not the one that was announced ({sha256[:12]})")
    try:
        manifest = parse_json(raw, MANIFEST)
        if type(size := manifest.get("bytes")) is not int or not 0 <= size < 1 << 63:
            raise ValueError(f"{manifest!r:.80} has no whole number 'bytes'")
        if not isinstance(manifest.get("sha256"), str):
            raise ValueError(f"{manifest!r:.80} has no text 'sha256'")
    except ValueError as error:
        raise Refusal("garbage", f"{MANIFEST} is none of a release: {error}") from error
    return manifest


def _verified(file: Path, sha256: str, place: Workplace) -> Path:
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise Refusal("unreachable", f"{file}: {error.strerror}") from error
    if digest != sha256:
        place.discard(file)
        raise Refusal("digest", f"{file.name} has sha256 {digest[:12]}, not {sha256[:12]}")
    return file


def header(file: Path) -> tuple[dict[str, Any], int]:
    """Returns the header of a safetensors file, and where its data begin.

    Raises:
        Refusal: it is none, is cut off, or its tensors do not follow one another without gaps.
    """
    try:
        # The library refuses sizes, shapes and places that lie, before it reads any data.
        with safe_open(str(file), "np"), file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            entries = parse_json(opened.read(size), "its header")
    except (OSError, ValueError, SafetensorError) as error:
        raise Refusal("garbage", f"{file.name} is no readable safetensors file: {error}") from error
    entries.pop("__metadata__", None)
    return entries, 8 + size


def parse_json(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object whose names are each said once.

    Raises:
        ValueError: it is none.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = dict(pairs)
        if len(named) < len(pairs):
            raise ValueError(f"{what} has a name twice")
        return named

    try:
        value = json.loads(raw, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError(f"{what} is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    return value


def check(file: Path, expected: Mapping[str, list[int]], dtype: str) -> None:
    """Refuses a file that is not a whole, finite version of the model that is served.

    Args:
        file: a safetensors file.
        expected: name -> shape of the served model's tensors.
        dtype: the served one, as in "bfloat16".

    Raises:
        Refusal: the first thing that is wrong, by name.
    """
    entries, start = header(file)
    _check_names(set(entries), set(expected))
    whole = np.memmap(file, np.uint8, "r", offset=0)
    for name, entry in entries.items():
        if list(entry["shape"]) != list(expected[name]):
            text = f"{name} has shape {entry['shape']}, the model's is {list(expected[name])}"
            raise Refusal("garbage", text)
        if DTYPES.get(entry["dtype"]) != dtype:
            raise Refusal("garbage", f"{name} is {entry['dtype']}, the model is served as {dtype}")
        begin, end = entry["data_offsets"]
        if not finite(whole[start + begin : start + end], entry["dtype"]):
            raise Refusal("garbage", f"{name} has NaN or infinite elements")


def _check_names(held: set[str], expected: set[str]) -> None:
    for label, names in (("lacks", expected - held), ("has unknown", held - expected)):
        if names:
            some = ", ".join(sorted(names)[:3])
            raise Refusal("garbage", f"the release {label} {len(names)} tensors: {some}")


def finite(raw: np.ndarray, dtype: str) -> bool:
    """Returns whether no element's exponent is all ones, as NaN's and infinity's are.

    For bfloat16 that takes a tenth of `isfinite`'s time.
    """
    bits, mask = EXPONENT[dtype]
    values = raw.view(bits)
    step = CHUNK // values.itemsize
    return not any(
        ((values[start : start + step] & mask) == mask).any()
        for start in range(0, len(values), step)
    )


@dataclass(frozen=True)
class Served:
    """The model that a server serves, as functions.

    Attributes:
        shapes_fn: gives name -> shape of the tensors that a release must bring.
        dtype: the served one, as in "bfloat16".
        install_fn: puts a checked release into the live model.
        receive_fn: joins a broadcast of the trainer's; None where there is no GPU for that.
    """

    shapes_fn: Callable[[], Mapping[str, list[int]]]
    dtype: str
    install_fn: Callable[[Checked], None]
    receive_fn: ReceiveFn | None = None


def update(
    place: Workplace,
    served: Served,
    *,
    version: int,
    manifest_sha256: str,
    install: bool = False,
    **source: Any,
) -> None:
    """One of the two updates that bring a release: it is staged first, then installed.

    A server has many workers. All of them have staged a release, which touches nothing that is
    live, before the first is told to install it. How it ended is noted for `Workplace.where`.

    Args:
        place: this worker's.
        served: the live model.
        version: the release's.
        manifest_sha256: says which release is meant.
        install: whether to install what was staged under that digest.
        source: where a release to stage is: `path`, `url` and `token`, or `broadcast`.

    Raises:
        Refusal: `broken` if the live model may be half loaded; otherwise it is as it was.
    """
    place.leave()
    try:
        if install:
            done = _install(place, served, manifest_sha256)
        else:
            done = _stage(place, served, version, manifest_sha256, source)
    except Refusal as refusal:
        _note(place, manifest_sha256, refusal.code, str(refusal))
        raise
    _note(place, manifest_sha256, "installed" if install else "staged", "", done.pulled)


def _note(place: Workplace, manifest_sha256: str, code: str, error: str, pulled: int = 0) -> None:
    outcome = {"code": code, "error": error, "pulled": pulled}
    place.last = {"manifest_sha256": manifest_sha256, **outcome}


def _stage(
    place: Workplace, served: Served, version: int, digest: str, source: Mapping[str, Any]
) -> Checked:
    if type(version) is not int or not isinstance(digest, str):
        text = f"version is {version!r:.60}, manifest_sha256 {digest!r:.60}"
        raise Refusal("refused", f"{text}: give a whole number and a text")
    place.stage(None)
    file, manifest, pulled = obtain(
        place, manifest_sha256=digest, receive_fn=served.receive_fn, **source
    )
    try:
        check(file, served.shapes_fn(), served.dtype)
    except Refusal:
        place.discard(file)
        raise
    release = Checked(file, version, manifest["sha256"], digest, pulled)
    place.stage(release)
    return release


def _install(place: Workplace, served: Served, digest: str) -> Checked:
    release, before = place.staged, place.live
    if release is None or release.manifest_sha256 != digest:
        raise Refusal("refused", f"the release {digest!r:.14} is not staged here: send it first")
    # Whatever happens from here on, what is live is not the version before.
    place.live = None
    try:
        served.install_fn(release)
    except Exception as error:  # whatever the engine raised, the model may be half loaded
        raise _undo(place, served, before, error) from error
    place.adopt(release, before)
    return release


def _undo(place: Workplace, served: Served, before: Checked | None, error: Exception) -> Refusal:
    """Puts the release before back after the engine failed halfway."""
    message = f"the engine could not load it: {type(error).__name__}: {error}"
    place.stage(None)
    if before is None or not before.file.is_file():
        return Refusal("broken", message)
    try:
        served.install_fn(before)
    except Exception as second:
        place.discard(before.file)
        return Refusal("broken", f"{message}; nor the release before again: {second}")
    place.live = before
    return Refusal("restored", message)
