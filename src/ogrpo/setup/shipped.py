"""Warm starts that come with the package, so that no run pays for them.

`shipped/manifest.json` names each by its recipe, all that the warm start depends on but versions
and machine, with the file of its weights and that file's SHA-256. Weights are float32.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors.numpy import load, save

from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.decoder import param_shapes
from ogrpo.system.files import read_json, write_json

FOLDER = Path(__file__).parent / "shipped"
MANIFEST = "manifest.json"


def read_shipped(
    recipe: str, decoder: DecoderConfig, dtype: DTypeLike, folder: Path = FOLDER
) -> tuple[Path, Params] | None:
    """Returns the file and the weights of a warm start that is shipped; None where it is not.

    Raises:
      ValueError: the file is missing, or is not the one that was shipped.
    """
    entry = read_json(folder / MANIFEST).get(recipe)
    if entry is None:
        return None
    file, remedy = folder / entry["file"], "install ogrpo anew, or give --warm-start.retrain"
    if not file.is_file():
        raise ValueError(f"{file}, a warm start that ogrpo comes with, is missing: {remedy}")
    content = file.read_bytes()
    sha, shipped = hashlib.sha256(content).hexdigest(), entry["sha256"]
    if sha != shipped:
        raise ValueError(
            f"{file} is not the warm start that ogrpo comes with: its SHA-256 begins with"
            f" {sha[:12]}, and not {shipped[:12]}: {remedy}"
        )
    tensors = load(content)

    def leaf(keys: Any, _: Any) -> jax.Array:
        return jnp.asarray(tensors[".".join(key.key for key in keys)], dtype)

    return file, jax.tree_util.tree_map_with_path(leaf, param_shapes(decoder))


def ship(recipe: str, name: str, params: Params, folder: Path = FOLDER) -> None:
    """Writes weights and their entry in the manifest, in place of one of the same name."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    tensors = {".".join(key.key for key in keys): np.asarray(x, np.float32) for keys, x in leaves}
    content, file = save(tensors), folder / f"{name}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    others = {key: entry for key, entry in manifest.items() if entry["file"] != file.name}
    entry = {"file": file.name, "sha256": hashlib.sha256(content).hexdigest()}
    write_json(folder / MANIFEST, {**others, recipe: entry})


def digest(recipe: dict[str, Any]) -> str:
    """Returns the SHA-256 of a recipe of plain JSON values."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
