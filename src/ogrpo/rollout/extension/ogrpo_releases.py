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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

MANIFEST, MODEL = "manifest.json", "model.safetensors"
LOCK = "lock"
PROTOCOL = 3
"""Version of the messages between trainer and worker extension; a server may have an older one."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
CHUNK = 1 << 22
PULL_SECONDS, LIMIT_SECONDS = 60.0, 540.0
"""Seconds for one read and for a whole file; a trainer waits longer than that for an update."""
MOST_MANIFEST = 1 << 26
EXPONENT = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}


class Refusal(Exception):
    """A push that must not reach the live model; `code` tells the trainer what it can do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Scratch:
    """A temporary folder that goes with this object, or, after a SIGKILL, when the next is made
    (on a file system with locks; elsewhere it stays then).

    Its owner holds a lock on the file `lock` in it, which the kernel lets go with the last of its
    processes. A process id would not do: containers share folders, but not ids.
    """

    def __init__(self, prefix: str) -> None:
        remove_stale(prefix)
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        fresh = self.folder / "lock.new"
        lock = fresh.open("wb")
        with suppress(OSError):  # a file system without locks: nobody finds it stale
            fcntl.flock(lock, fcntl.LOCK_EX)
        # It gets its name when it is locked: nobody sees it free before.
        fresh.rename(self.folder / LOCK)

        def remove(folder: Path = self.folder) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()

        self.remove = weakref.finalize(self, remove)


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
    """A release whose file can be read here and is whole; `pulled` bytes came over the network."""

    file: Path
    version: int
    sha256: str
    manifest_sha256: str
    pulled: int


class WorkerState:
    """The memory of a server between two updates.

    Attributes:
      instance: names this process.
      live: the release in use; None for first weights, and for a model that may be half loaded.
      staged: the release that is to be installed.
      last: how the last update ended: vLLM's routes say nothing but 500.
      scratch: the folder of fetched files.
    """

    def __init__(self) -> None:
        self.instance = uuid.uuid4().hex
        self.live: Checked | None = None
        self.staged: Checked | None = None
        self.last: dict[str, Any] | None = None
        self._held = Scratch("ogrpo-sync-")
        self.scratch = self._held.folder

    def status(self) -> dict[str, Any]:
        """Returns the version in use and how the last update ended, for an answer."""
        live = self.live
        version, sha256 = (-1, "") if live is None else (live.version, live.sha256)
        return {
            "version": version,
            "sha256": sha256,
            "instance": self.instance,
            "update": self.last,
        }

    def stage(self, release: Checked | None) -> None:
        """Keeps a release until it is installed, in the place of one that never was."""
        if self.staged is not None:
            self.discard(self.staged.file)
        self.staged = release

    def write(self, name: str, pieces: Iterator[Any]) -> Path:
        """Writes a file into the scratch folder, whole or not at all."""
        target = self.scratch / f"{uuid.uuid4().hex}.{name}"
        try:
            with target.open("wb") as out:
                for piece in pieces:
                    out.write(piece)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target

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
        """Returns the content of a small file."""
        try:
            with (self.folder / name).open("rb") as opened:
                return opened.read(MOST_MANIFEST)
        except OSError as error:
            raise Refusal("unreachable", f"{self.folder / name}: {error.strerror}") from error

    def fetch(self, name: str, size: int, state: WorkerState) -> Path:  # noqa: ARG002
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

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        # No proxy, and nobody whom a redirection names: weights come from the trainer's own
        # address, and the token goes there alone.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight)
        try:
            request = urllib.request.Request(f"{self.url}/{name}", headers=self.headers)
            with opener.open(request, timeout=PULL_SECONDS) as reply:
                yield reply
        except (http.client.HTTPException, OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the answer, and with it the connection
            raise Refusal("unreachable", f"{self.url}/{name}: {error}") from error

    def read(self, name: str) -> bytes:
        """Returns the content of a small file."""
        with self._opened(name) as reply:
            return b"".join(_pieces(reply, MOST_MANIFEST))

    def fetch(self, name: str, size: int, state: WorkerState) -> Path:
        """Pulls a file into this server's scratch folder, and no more than its size."""
        with self._opened(name) as reply:  # one byte more shows in the digest
            return state.write(name, _pieces(reply, size + 1))


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
    state: WorkerState,
    *,
    manifest_sha256: str,
    path: str | None = None,
    url: str | None = None,
    token: str | None = None,
) -> tuple[Path, dict[str, Any], int]:
    """Returns a release's model file, its manifest, and the bytes that came over a network.

    Raises:
      Refusal: something is out of reach or is not what was announced.
    """
    for name, text in (("path", path), ("url", url), ("token", token)):
        if not isinstance(text, str | None):
            raise Refusal("refused", f"{name} is {text!r:.60}: give a text")
    release = Folder(Path(path)) if path is not None else Remote(str(url), token)
    raw = release.read(MANIFEST)
    if hashlib.sha256(raw).hexdigest() != manifest_sha256:
        short = manifest_sha256[:12]
        raise Refusal("digest", f"{MANIFEST} is not the one that was announced ({short})")
    try:
        manifest = parse_json(raw, MANIFEST)
        if type(size := manifest.get("bytes")) is not int or not 0 <= size < 1 << 63:
            raise ValueError(f"{manifest!r:.80} has no whole number 'bytes'")
        if not isinstance(sha256 := manifest.get("sha256"), str):
            raise ValueError(f"{manifest!r:.80} has no text 'sha256'")
    except ValueError as error:
        raise Refusal("garbage", f"{MANIFEST} is none of a release: {error}") from error
    file = release.fetch(MODEL, size, state)
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise Refusal("unreachable", f"{file}: {error.strerror}") from error
    if digest != sha256:
        state.discard(file)
        raise Refusal("digest", f"{file.name} has sha256 {digest[:12]}, not {sha256[:12]}")
    return file, manifest, 0 if isinstance(release, Folder) else size


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
    """Returns a JSON object that has no name twice.

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
    lacking, unknown = expected.keys() - entries.keys(), entries.keys() - expected.keys()
    for label, names in (("lacks", lacking), ("has unknown", unknown)):
        if names:
            some = ", ".join(sorted(names)[:3])
            raise Refusal("garbage", f"the release {label} {len(names)} tensors: {some}")
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
    """

    shapes_fn: Callable[[], Mapping[str, list[int]]]
    dtype: str
    install_fn: Callable[[Checked], None]


def update(
    state: WorkerState,
    served: Served,
    *,
    version: int,
    manifest_sha256: str,
    install: bool = False,
    **source: Any,
) -> None:
    """Carries out one of the two updates that bring a release: staged first, then installed.

    A server has many workers. All of them have staged a release, which touches nothing that is
    live, before the first is told to install it. How it ended is noted for `WorkerState.status`.

    Args:
      state: this worker's.
      served: the live model.
      version: the release's.
      manifest_sha256: says which release is meant.
      install: whether to install what was staged under that digest.
      source: where a release to stage is: `path`, or `url` and `token`.

    Raises:
      Refusal: `broken` if the live model may be half loaded; otherwise it is as it was.
    """
    note = {"manifest_sha256": manifest_sha256, "error": "", "pulled": 0}
    state.last = None  # an error that is no Refusal must not be taken for the one before
    try:
        if install:
            release = _install(state, served, manifest_sha256)
        else:
            release = _stage(state, served, version, manifest_sha256, source)
    except Refusal as refusal:
        state.last = {**note, "code": refusal.code, "error": str(refusal)}
        raise
    state.last = {**note, "code": "installed" if install else "staged", "pulled": release.pulled}


def _stage(
    state: WorkerState, served: Served, version: int, digest: str, source: Mapping[str, Any]
) -> Checked:
    if type(version) is not int or not isinstance(digest, str):
        text = f"version is {version!r:.60}, manifest_sha256 {digest!r:.60}"
        raise Refusal("refused", f"{text}: give a whole number and a text")
    state.stage(None)
    file, manifest, pulled = obtain(state, manifest_sha256=digest, **source)
    try:
        check(file, served.shapes_fn(), served.dtype)
    except BaseException:
        state.discard(file)
        raise
    release = Checked(file, version, manifest["sha256"], digest, pulled)
    state.stage(release)
    return release


def _install(state: WorkerState, served: Served, digest: str) -> Checked:
    """Installs the staged release; where the engine fails halfway, the one before again."""
    release, before = state.staged, state.live
    if release is None or release.manifest_sha256 != digest:
        raise Refusal("refused", f"the release {digest!r:.14} is not staged here: send it first")
    # Whatever happens from here on, what is live is not the version before.
    state.live = None
    try:
        served.install_fn(release)
    except Exception as error:  # whatever the engine raised, the model may be half loaded
        message = f"the engine could not load it: {type(error).__name__}: {error}"
        state.stage(None)
        if before is None or not before.file.is_file():
            raise Refusal("broken", message) from error
        try:
            served.install_fn(before)
        except Exception as second:
            state.discard(before.file)
            again = f"{message}; nor the release before again: {second}"
            raise Refusal("broken", again) from error
        state.live = before
        raise Refusal("restored", message) from error
    state.live, state.staged = release, None
    if before is not None:
        state.discard(before.file)
    return release
