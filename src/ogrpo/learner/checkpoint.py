"""Checkpoints: arrays by Orbax, progress as JSON, and a manifest of what every file holds.

    N/arrays/         as Orbax stores a pytree
    N/progress.json   plain values
    N/manifest.json   size and SHA-256 of each file

A checkpoint is written under another name, put on disk, and renamed: a folder that is called N was
whole once. Older ones are deleted after that, so that there is one at every moment. SHA-256 and not
a shorter sum: processors compute it faster than disks write, and no two contents share one.
"""

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from ogrpo.learner.finite import nonfinite, require_finite
from ogrpo.learner.hosts import fetch, from_first, on_first
from ogrpo.system.files import make_folder, read_json, replacing, sync_folder, write_json

WRITING, DELETING = ".writing-", ".deleting-"
LEFT_OVER = re.compile(
    rf"({re.escape(WRITING)}|{re.escape(DELETING)}).*|\d+\.orbax-checkpoint-tmp.*"
)
ASIDE = "set_aside"
MANIFEST, FORMAT = "manifest.json", 1
IN_FLIGHT = 256_000_000
"""Bytes on their way to a disk or from it: so much more memory does a checkpoint take."""
PLAIN = re.compile(r"[\w ./@%+=:,#~-]+")
"""Paths that Orbax and TensorStore take as they are: no patterns, no backslashes."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or used; the message says which, and why."""


def content_hash(tree: Any) -> str:
    """Returns the SHA-256 of arrays, their names, shapes and dtypes; empty for an empty tree."""
    leaves = jax.tree.leaves_with_path(tree)
    digest = hashlib.sha256()
    for path, leaf in leaves:
        host = np.ascontiguousarray(fetch(jnp.copy(leaf)))  # an array keeps its copy on the host
        digest.update(f"{jax.tree_util.keystr(path)} {host.shape} {host.dtype}\n".encode())
        digest.update(host.reshape(-1).view(np.uint8).data)
    return digest.hexdigest() if leaves else ""


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """Saves and restores `(arrays, progress)` by step under one folder.

    With several processes all call every method, in the same order.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int) -> None:
        self._folder, self._keep = Path(os.path.abspath(folder)), keep
        self._damages: dict[int, str | None] = {}
        on_first(self._clean)
        self._link = _linked(self._folder)

    def __exit__(self, *_: object) -> None:
        if self._link != self._folder:
            with suppress(OSError):
                self._link.unlink()
                self._link.parent.rmdir()

    @property
    def exists(self) -> bool:
        """Whether the checkpoints' folder exists."""
        return from_first(self._folder.is_dir)

    def make(self) -> None:
        """Makes the folder, which says that the run began."""
        on_first(lambda: make_folder(self._folder))

    @property
    def latest(self) -> int | None:
        """Returns the newest step on disk, or None."""
        return max(self.steps, default=None)

    @property
    def steps(self) -> list[int]:
        """Returns the steps on disk, ascending; all processes agree on them."""
        return from_first(self.listed)

    def listed(self) -> list[int]:
        """Returns the steps that this process sees on disk, without asking the others."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal() and path.is_dir())

    def damage(self, step: int) -> str | None:
        """Returns the first difference of a checkpoint from its manifest, read once, or None."""
        if step not in self._damages:
            self._damages[step] = from_first(lambda: _damage(self._folder / str(step), step))
        return self._damages[step]

    def progress(self, step: int) -> dict[str, Any]:
        """Reads the progress of checkpoint `step`, without its arrays.

        Raises:
          CheckpointError: it cannot be read.
        """
        return from_first(lambda: self._read_progress(step))

    def save(self, step: int, arrays: Any, progress: Mapping[str, Any]) -> None:
        """Writes a checkpoint, then deletes those that are too many.

        Saving the newest step twice keeps the first. On an error what was there before is there.

        Raises:
          CheckpointError: it cannot be written.
          NotFiniteError: an array has NaN or infinity.
        """
        if step == self.latest:
            return
        require_finite(arrays, f"the checkpoint of step {step} is not written, older ones stay")
        draft = f"{WRITING}{step}"
        try:
            on_first(lambda: self._begin(draft))
            with _orbax(arrays) as orbax:
                orbax.save(self._link / draft / "arrays", args=ocp.args.PyTreeSave(arrays))
            on_first(lambda: self._complete(draft, step, progress))
        except (OSError, ValueError, RuntimeError) as error:
            shutil.rmtree(self._folder / draft, ignore_errors=True)
            free = shutil.disk_usage(next(p for p in self._folder.parents if p.is_dir())).free
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays))
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {self._folder}"
                f" ({_short(error)}; {free / 1e6:,.1f} MB are free for its {size / 1e6:,.1f}): free"
                " space there, or let the folder be written to"
            ) from error
        self._damages[step] = None
        on_first(self._delete_old)

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Reads checkpoint `step` into the structure, shapes, dtypes and places of `like`.

        `like` may be arrays or, so that only one copy is ever held, `jax.ShapeDtypeStruct`s.

        Raises:
          CheckpointError: a file is not what was written, or the arrays are others than `like`,
            or not finite.
        """
        if (reason := self.damage(step)) is not None:
            raise CheckpointError(f"the checkpoint {self._folder / str(step)} is damaged: {reason}")
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        where = self._link / str(step) / "arrays"
        places = ocp.checkpoint_utils.construct_restore_args(target)
        try:
            with _orbax(target) as orbax:
                arrays = orbax.restore(where, args=ocp.args.PyTreeRestore(target, places))
        except (KeyError, OSError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the arrays of the checkpoint {self._folder / str(step)} cannot be read as this"
                f" run's ({_short(error)}): resume it with the options that it was written with"
            ) from error
        if bad := nonfinite(arrays):
            raise CheckpointError(
                f"the checkpoint {self._folder / str(step)} has NaN or infinity in"
                f" {', '.join(bad[:3])}: go back to an older one with --resume-from"
            )
        return arrays, self.progress(step)

    def set_aside(self, step: int) -> Path:
        """Moves checkpoint `step` where nothing looks for one, and returns its place there."""
        self._damages.pop(step, None)
        return from_first(lambda: self._move(step))

    def _clean(self) -> None:
        for path in [*self._folder.iterdir()] if self._folder.is_dir() else ():
            if LEFT_OVER.fullmatch(path.name):
                shutil.rmtree(path)

    def _read_progress(self, step: int) -> dict[str, Any]:
        folder = self._folder / str(step)
        try:
            return read_json(folder / "progress.json")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the checkpoint {folder} is damaged: {error}") from error

    def _begin(self, draft: str) -> None:
        make_folder(self._folder)
        shutil.rmtree(self._folder / draft, ignore_errors=True)
        (self._folder / draft).mkdir()

    def _complete(self, draft: str, step: int, progress: Mapping[str, Any]) -> None:
        """Syncs every file to disk, writes sizes and SHA-256 beside them, and renames the draft."""
        folder = self._folder / draft
        write_json(folder / "progress.json", dict(progress))
        files = {}
        for path in sorted(Path(at, name) for at, _, names in os.walk(folder) for name in names):
            with path.open("rb") as file:
                files[path.relative_to(folder).as_posix()] = _digest(file)
                os.fsync(file.fileno())
        for inner, _, _ in os.walk(folder):
            sync_folder(Path(inner))
        with replacing(folder / MANIFEST) as file:
            file.write(_text({"format": FORMAT, "step": step, "files": files}))
        os.rename(folder, self._folder / str(step))
        sync_folder(self._folder)

    def _delete_old(self) -> None:
        for step in self.listed()[: -self._keep]:
            gone = self._folder / f"{DELETING}{step}"  # half a folder must not look like a whole
            os.rename(self._folder / str(step), gone)
            shutil.rmtree(gone)

    def _move(self, step: int) -> Path:
        aside = self._folder / ASIDE
        aside.mkdir(exist_ok=True)
        target = aside / f"{sum(1 for _ in aside.iterdir()):03}-{step}"
        os.rename(self._folder / str(step), target)
        sync_folder(self._folder)
        return target


def _orbax(arrays: Any) -> ocp.Checkpointer:
    """Returns Orbax, copying at most `IN_FLIGHT` bytes at a time, or one array that has more."""
    sizes = (math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(arrays))
    most = max(IN_FLIGHT, 1 + max(sizes, default=0))  # Orbax refuses an array of just the limit
    handler = ocp.BasePyTreeCheckpointHandler(
        save_concurrent_bytes=most, restore_concurrent_bytes=most
    )
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(handler_impl=handler))


def _short(error: Exception) -> str:
    """Returns the first line of a message, of TensorStore's long ones the system's own words."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    first = str(error).split("\n", maxsplit=1)[0]
    return first if len(first) <= 300 else f"{first[:300]}..."


def _linked(folder: Path) -> Path:
    """Returns the folder by a path without characters that Orbax and TensorStore read as patterns.

    Orbax lists what it wrote by `glob` with the folder's own name in the pattern, and TensorStore
    reads a backslash as a separator; both then find nothing.
    """
    if PLAIN.fullmatch(str(folder)):
        return folder
    for root in (tempfile.gettempdir(), "/tmp"):
        if PLAIN.fullmatch(root) and os.path.isdir(root):
            link = Path(tempfile.mkdtemp(prefix="ogrpo-", dir=root)) / "checkpoints"
            link.symlink_to(folder, target_is_directory=True)
            return link
    raise CheckpointError(
        f"checkpoints cannot be written to {folder!s}: Orbax reads some of its characters as a"
        " pattern; choose another --run-dir"
    )


def _damage(folder: Path, step: int) -> str | None:
    """Returns the first difference between a folder and its manifest, or None."""
    try:
        manifest = read_json(folder / MANIFEST)
        if (folder / MANIFEST).read_bytes() != _text(manifest).encode():
            return f"{MANIFEST} was changed after it was written"
        if {**manifest, "files": None} != {"format": FORMAT, "step": step, "files": None}:
            return f"{MANIFEST} is of another checkpoint"
        for name, written in manifest["files"].items():
            try:
                with (folder / name).open("rb") as file:
                    actual = _digest(file)
            except FileNotFoundError:
                return f"{name} is missing"
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
            if actual["bytes"] != written["bytes"]:
                return f"{name} has {actual['bytes']:,} bytes of {written['bytes']:,}"
            if actual != written:
                return f"{name} has other bytes than were written (SHA-256)"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def _digest(file: Any) -> dict[str, Any]:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": digest}


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
