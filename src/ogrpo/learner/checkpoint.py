"""Checkpoints with Orbax: arrays as a pytree, progress as JSON, atomically, the newest few kept."""

import hashlib
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from ogrpo.learner.finite import require_finite
from ogrpo.learner.hosts import fetch


def content_hash(tree: Any) -> str:
    """SHA-256 of arrays, their names, shapes and dtypes; empty for a tree without any."""
    leaves = jax.tree.leaves_with_path(tree)
    digest = hashlib.sha256()
    for path, leaf in leaves:
        copied = fetch(jnp.copy(leaf))  # of a copy: an array keeps what it hands out
        host = np.ascontiguousarray(copied)
        digest.update(f"{jax.tree_util.keystr(path)} {host.shape} {host.dtype}\n".encode())
        digest.update(host.reshape(-1).view(np.uint8).data)
    return digest.hexdigest() if leaves else ""


class Checkpoints:
    """Saves and restores `(arrays, progress)` by step under one folder."""

    def __init__(self, folder: str | os.PathLike[str], *, keep: int) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        handlers = {
            "arrays": ocp.StandardCheckpointHandler(save_concurrent_gb=1, restore_concurrent_gb=1),
            "progress": ocp.JsonCheckpointHandler(),
        }
        self._manager = ocp.CheckpointManager(
            os.path.abspath(folder), options=options, item_handlers=handlers
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The newest step on disk, or None."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """Those on disk, ascending."""
        return sorted(self._manager.all_steps())

    def progress(self, step: int) -> dict[str, Any]:
        """The progress of checkpoint `step`, without its arrays."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        return self._manager.restore(step, args=args)["progress"]

    def save(self, step: int, arrays: Any, progress: Mapping[str, Any]) -> None:
        """Writes a checkpoint; saving the same step twice keeps the first.

        Raises:
          NotFiniteError: an array has NaN or infinity.
        """
        if step == self.latest:
            return
        require_finite(arrays, f"the checkpoint of step {step} is not written, older ones stay")
        self._manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), progress=ocp.args.JsonSave(dict(progress))
            ),
        )

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Reads checkpoint `step` into the structure, shapes, dtypes and places of `like`.

        `like` may be arrays or, so that only one copy is ever held, `jax.ShapeDtypeStruct`s.
        """
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore()
            ),
        )
        return restored["arrays"], restored["progress"]
