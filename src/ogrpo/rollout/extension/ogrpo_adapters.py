"""The server's side of a push of adapters: checked, and put where vLLM's own route finds them.

vLLM takes adapters with NaN, of another width or for a part of the layers without a word, and reads
their folder again whenever it has evicted them, which ends its engine if the folder is gone. So a
release of adapters is checked here first, and what vLLM is told of is a copy of this worker's own.
"""

import filecmp
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __package__:  # ogrpo's own server
    from ogrpo.rollout.extension import ogrpo_releases as releases
else:
    import ogrpo_releases as releases  # pyright: ignore[reportMissingImports]

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
KEPT = 4
"""Copies that stay: those of the two versions that a trainer uses at a time, and two more whose
requests may not have ended."""


class Adapters:
    """The copies of adapters that a worker keeps.

    Args:
        place: the worker's `Workplace`.
        shapes_fn: () -> names and shapes of the model that the adapters stand beside.
        dtype: the served one.
        most_rank: the rank that the server was started for; 0 where it takes none.
    """

    def __init__(
        self,
        place: Any,
        *,
        shapes_fn: Callable[[], Mapping[str, list[int]]],
        dtype: str,
        most_rank: int,
    ) -> None:
        self._place, self._shapes_fn = place, shapes_fn
        self._dtype, self._most_rank = dtype, most_rank
        self._kept: list[Path] = []

    def stage(self, name: str, **source: Any) -> dict[str, Any]:
        """Returns `{"ok": True, "path"}` of a PEFT folder, or `{"ok": False, "code", "error"}`.

        Args:
            name: the folder's, which no other adapters have.
            source: a release, as `releases.obtain` takes it.
        """
        try:
            folder, moved = self._stage(name, source)
        except releases.Refusal as refusal:
            return {"ok": False, "code": refusal.code, "error": str(refusal)}
        return {"ok": True, "path": str(folder), "bytes": moved}

    def _stage(self, name: str, source: dict[str, Any]) -> tuple[Path, int]:
        if not isinstance(name, str) or not name.replace("-", "").isalnum():
            raise releases.Refusal("refused", f"{name!r:.60} is no name for adapters")
        file, manifest, moved = releases.obtain(self._place, **source)
        folder = self._place.scratch / "adapters" / name
        fresh = folder.with_name(f".{name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            shutil.copyfile(file, fresh / TENSORS)
            rank, alpha, targets = self._about(manifest)
            with (fresh / TENSORS).open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != manifest["sha256"]:
                    raise releases.Refusal("digest", "the release changed while it was copied")
            shapes = adapter_shapes(self._shapes_fn(), rank, targets)
            releases.check(fresh / TENSORS, shapes, self._dtype)
            (fresh / CONFIG).write_text(json.dumps(peft_config(rank, alpha, targets)))
            if not folder.exists():
                fresh.rename(folder)
            elif any(filecmp.cmpfiles(folder, fresh, (TENSORS, CONFIG), shallow=False)[1:]):
                raise releases.Refusal("refused", f"{name} is the name of other adapters")
        finally:  # vLLM may be reading a folder that was there before: it stays
            shutil.rmtree(fresh, ignore_errors=True)
            self._place.discard(file)
        self._kept = [*(each for each in self._kept if each != folder), folder]
        for old in self._kept[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        self._kept = self._kept[-KEPT:]
        return folder, moved

    def _about(self, manifest: Mapping[str, Any]) -> tuple[int, float, list[str]]:
        """Returns rank, alpha and targets of the adapters, as their manifest has them."""
        about = manifest.get("adapter")
        entries: Any = about if isinstance(about, dict) else {}
        rank, alpha, targets = map(entries.get, ("rank", "alpha", "targets"))
        if type(rank) is not int or rank < 1:
            raise releases.Refusal("garbage", f"the release has adapters of rank {rank!r:.40}")
        if rank > self._most_rank:
            text = f"adapters of rank {rank}, and the server takes {self._most_rank} at most"
            raise releases.Refusal("refused", f"{text}: start it with a larger --lora-rank")
        if type(alpha) not in (int, float) or not 0 < alpha < math.inf:
            raise releases.Refusal("garbage", f"the release has adapters of alpha {alpha!r:.40}")
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
            raise releases.Refusal("garbage", f"the release has adapters beside {targets!r:.60}")
        return rank, alpha, targets


def adapter_shapes(
    expected: Mapping[str, list[int]], rank: int, targets: list[str]
) -> dict[str, list[int]]:
    """Returns names and shapes of A and B beside each target of each layer.

    Raises:
        Refusal: no layer has such a target.
    """
    shapes: dict[str, list[int]] = {}
    for target in targets:
        beside = [name for name in expected if name.endswith(f".{target}.weight")]
        if not beside:
            raise releases.Refusal("garbage", f"the model has no projection {target!r:.40}")
        for name in beside:
            outputs, inputs = expected[name]
            module = f"base_model.model.{name.removesuffix('.weight')}"
            shapes[f"{module}.lora_A.weight"] = [rank, inputs]
            shapes[f"{module}.lora_B.weight"] = [outputs, rank]
    return shapes


def peft_config(rank: int, alpha: float, targets: list[str]) -> dict[str, Any]:
    """Returns what vLLM reads of PEFT's `adapter_config.json`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": targets,
        "bias": "none",
    }
