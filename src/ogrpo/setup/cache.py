"""Results that are costly to make again: compiled programs and warm starts, in the user's cache.

Some warm starts come with the package, so that no run pays for them.
`shipped/manifest.json` names each of these by its recipe, all that the warm start depends on but
versions and machine, with the file of its weights and that file's SHA-256. Weights are float32.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike
from safetensors.numpy import load, save

from ogrpo.models.convert import Show, silent
from ogrpo.models.known import model_folder
from ogrpo.policy import Params
from ogrpo.system.files import read_json, write_json


def cache_path() -> Path:
    """Returns `OGRPO_CACHE_DIR`, or else the user's cache folder for this platform."""
    folder = os.environ.get("OGRPO_CACHE_DIR")
    return Path(folder) if folder else platformdirs.user_cache_path("ogrpo")


def weights_folder(path: Path, show: Show = silent) -> Path:
    """Returns the folder of a model: itself, or what a GGUF file or a known name is made into."""
    return model_folder(path, cache_path(), show=show)


def keep_compiled_programs() -> None:
    """Keeps XLA's programs between runs, unless JAX already has a folder for them."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_path() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


FOLDER = Path(__file__).parent / "shipped"
MANIFEST = "manifest.json"


def read_shipped(
    recipe: str, dtype: DTypeLike, folder: Path = FOLDER
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
    tensors = {name: jnp.asarray(tensor, dtype) for name, tensor in load(content).items()}
    return file, unflatten_dict(tensors, sep=".")


def ship(recipe: str, name: str, params: Params, folder: Path = FOLDER) -> None:
    """Writes weights and their entry in the manifest, in place of one of the same name."""
    leaves = flatten_dict(params, sep=".")
    tensors = {name: np.asarray(leaf, np.float32) for name, leaf in leaves.items()}
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
