"""Hugging Face folders: `config.json` and `*.safetensors`, read and written without torch."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import Params, param_shapes

_CONFIG = "config.json"
_MODEL = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_FLOATS = ("F32", "F16", "BF16")


class Slot(NamedTuple):
    """Where a tensor of a checkpoint lives: a leaf of the parameters and, if stacked, its layer."""

    path: tuple[str, ...]
    layer: int | None
    shape: tuple[int, ...]


def tensor_slots(config: DecoderConfig) -> dict[str, Slot]:
    """The checkpoint's tensors by their Hugging Face names, in a fixed order."""
    return dict(_slots(config))


def _slots(config: DecoderConfig) -> Iterator[tuple[str, Slot]]:
    for keys, leaf in jax.tree_util.tree_leaves_with_path(param_shapes(config)):
        path = _path(keys)
        if path[0] == "layers":
            for layer in range(config.num_layers):
                yield (
                    ".".join(("model", "layers", str(layer), *path[1:])),
                    Slot(path, layer, leaf.shape[1:]),
                )
        else:
            prefix = () if path[0] == "lm_head" else ("model",)
            yield ".".join((*prefix, *path)), Slot(path, None, leaf.shape)


def load_pretrained(
    folder: str | os.PathLike[str], dtype: DTypeLike
) -> tuple[DecoderConfig, Params]:
    """Read a model from a Hugging Face folder.

    Args:
      folder: holds `config.json` and `model.safetensors`, or shards with their
        `model.safetensors.index.json`.
      dtype: of the parameters, and so of the computation; tensors are converted to it.

    Returns:
      The model's shape and its parameters.

    Raises:
      ValueError: a file is missing or unreadable; the architecture is not supported; a tensor is
        missing, unknown, of another shape or of a quantised dtype, or is not finite (each one is
        named).
    """
    config = load_config(folder)
    with ExitStack() as stack:
        tensors = _open_tensors(Path(folder), stack)
        _check_tensors(config, tensors)
        return config, _read(config, tensors, dtype, Path(folder))


def load_config(folder: str | os.PathLike[str]) -> DecoderConfig:
    """Read the model's shape from a Hugging Face folder's `config.json`."""
    return DecoderConfig.from_hf(read_json(Path(folder) / _CONFIG))


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object, with a ValueError naming the file if it is not there or is not one."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist; a Hugging Face model folder is expected")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value


def save_pretrained(
    folder: str | os.PathLike[str],
    config: DecoderConfig,
    params: Params,
    *,
    extra_fields: Mapping[str, Any] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` as transformers would.

    Tensors keep their dtype. Each file is written beside its final name and then moved there, so
    that an interrupted save leaves what was there before.

    Args:
      folder: created if it does not exist.
      config: the model's shape.
      params: its parameters.
      extra_fields: further fields of `config.json`, such as `eos_token_id`.

    Raises:
      ValueError: parameters that are not of this shape, an extra field that contradicts it, or a
        folder that holds a sharded model, which some readers would go on to prefer.
    """
    folder = Path(folder)
    _check_params(config, params)
    fields = {**config.to_hf(), "dtype": str(params["embed_tokens"]["weight"].dtype)}
    clash = sorted(fields.keys() & (extra_fields or {}).keys())
    if clash:
        raise ValueError(f"extra_fields {clash} are the model's own; they come from its config")
    if (folder / _INDEX).exists():
        raise ValueError(f"{folder} holds shards ({_INDEX}); save to another folder")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{_MODEL}.partial"
    save_file(_named_arrays(config, params), partial, metadata={"format": "pt"})
    partial.replace(folder / _MODEL)
    partial = folder / f"{_CONFIG}.partial"
    text = json.dumps({**fields, **(extra_fields or {})}, indent=2, sort_keys=True)
    partial.write_text(f"{text}\n", encoding="utf-8")
    partial.replace(folder / _CONFIG)


def _named_arrays(config: DecoderConfig, params: Params) -> dict[str, np.ndarray]:
    host = jax.tree.map(lambda leaf: np.ascontiguousarray(np.asarray(leaf)), params)
    return {name: _stored(host, slot) for name, slot in _slots(config)}


def _stored(host: Params, slot: Slot) -> np.ndarray:
    leaf = _at(host, slot.path)
    return leaf if slot.layer is None else leaf[slot.layer]


def _at(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _check_params(config: DecoderConfig, params: Params) -> None:
    shapes = param_shapes(config)
    expected, found = jax.tree.structure(shapes), jax.tree.structure(params)
    if expected != found:
        raise ValueError(f"{config.architecture} has the parameters {expected}, got {found}")
    for name, slot in _slots(config):
        want, got = (jnp.shape(_at(tree, slot.path)) for tree in (shapes, params))
        if want != got:
            raise ValueError(f"the parameter behind {name} has shape {got}, not {want}")


def _open_tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Each tensor's name with the open file that holds it."""
    tensors: dict[str, Any] = {}
    for file in _tensor_files(folder):
        try:
            opened = stack.enter_context(safe_open(file, "np"))
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} is not a readable safetensors file: {error}") from error
        tensors.update(dict.fromkeys(opened.keys(), opened))
    return tensors


def _tensor_files(folder: Path) -> list[Path]:
    """The one file, or else the shards, in transformers' order of preference."""
    if (folder / _MODEL).is_file():
        return [folder / _MODEL]
    if not (folder / _INDEX).is_file():
        raise ValueError(
            f"{folder} has neither {_MODEL} nor {_INDEX}; a checkpoint in another format must be"
            " saved as safetensors first (transformers: model.save_pretrained)"
        )
    shards = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{folder / _INDEX} has no 'weight_map' from tensors to files")
    return [folder / name for name in sorted(set(shards.values()))]


def _check_tensors(config: DecoderConfig, tensors: Mapping[str, Any]) -> None:
    slots = tensor_slots(config)
    missing = [name for name in slots if name not in tensors]
    if missing:
        raise ValueError(f"the checkpoint lacks {_some(missing)}, which {config.architecture} has")
    unknown = sorted(tensors.keys() - slots.keys() - ({_HEAD} if config.tie_embeddings else set()))
    if unknown:
        raise ValueError(f"the checkpoint has {_some(unknown)}, unknown to {config.architecture}")
    for name, slot in slots.items():
        _check_tensor(name, slot, tensors[name].get_slice(name))
    if config.tie_embeddings and _HEAD in tensors:
        _check_tied_copy(tensors)


def _check_tensor(name: str, slot: Slot, stored: Any) -> None:
    shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
    if shape != slot.shape:
        raise ValueError(
            f"{name} has shape {list(shape)} in the checkpoint; config.json makes it"
            f" {list(slot.shape)}"
        )
    if dtype not in _FLOATS:
        raise ValueError(f"{name} is stored as {dtype}; supported: {', '.join(_FLOATS)}")


def _check_tied_copy(tensors: Mapping[str, Any]) -> None:
    head = tensors[_HEAD].get_tensor(_HEAD)
    if not np.array_equal(head, tensors[_EMBEDDING].get_tensor(_EMBEDDING)):
        raise ValueError(
            f"config.json ties the embeddings, but {_HEAD} differs from {_EMBEDDING};"
            ' set "tie_word_embeddings": false to keep both'
        )


def _read(
    config: DecoderConfig, tensors: Mapping[str, Any], dtype: DTypeLike, folder: Path
) -> Params:
    """One leaf at a time, so that the host holds one leaf more than the parameters at most."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, slot in _slots(config):
        names.setdefault(slot.path, []).append(name)

    def leaf(keys: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        parts = names[_path(keys)]
        host = np.empty(shape.shape, dtype)
        rows = host if _path(keys)[0] == "layers" else host[None]
        for row, name in zip(rows, parts, strict=True):
            row[...] = tensors[name].get_tensor(name)
            if not np.isfinite(row).all():
                raise ValueError(_not_finite(name, row, folder))
        return jnp.asarray(host)

    return jax.tree_util.tree_map_with_path(leaf, param_shapes(config))


def _not_finite(name: str, row: np.ndarray, folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    file = next((file for file in files if _holds(file, name)), folder)
    bad = np.count_nonzero(~np.isfinite(row))
    return (
        f"{file}: {name} has {bad:,} of {row.size:,} weights that are NaN or infinite as"
        f" {row.dtype}: the model is broken, take an earlier copy of it"
    )


def _holds(file: Path, name: str) -> bool:
    with safe_open(file, "np") as opened:
        return name in [*opened.keys()]


def _path(keys: Any) -> tuple[str, ...]:
    return tuple(key.key for key in keys)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more tensors"
