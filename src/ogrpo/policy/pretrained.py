"""Hugging Face folders: `config.json` and `*.safetensors`, read and written without torch."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import Params, param_shapes
from ogrpo.policy.room import check_room
from ogrpo.policy.shards import INDEX, MODEL, file_of, open_tensors, read_object, some
from ogrpo.system.files import replacing_file, write_json

_CONFIG = "config.json"
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

    Nothing is allocated before the config agrees with the headers of the files, which agree with
    their sizes, and the weights with the memory that is free.

    Args:
      folder: holds `config.json` and `model.safetensors`, or shards with their
        `model.safetensors.index.json`.
      dtype: of the parameters, and so of the computation; tensors are converted to it.

    Returns:
      The model's shape and its parameters.

    Raises:
      ValueError: a file is missing or unreadable; the architecture is not supported; a tensor is
        missing, unknown, of another shape or of a quantised dtype, or not finite (each one is
        named); the weights are larger than the memory that is free.
    """
    folder = Path(folder)
    config = load_config(folder)
    with ExitStack() as stack:
        tensors = open_tensors(folder, stack)
        try:
            _check_tensors(config, tensors)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error
        check_room(config, dtype, str(folder))
        return config, _read(config, tensors, dtype, folder)


def load_config(folder: str | os.PathLike[str]) -> DecoderConfig:
    """Read the model's shape from a Hugging Face folder's `config.json`."""
    file = Path(folder) / _CONFIG
    return DecoderConfig.from_hf(read_object(file), str(file))


def save_pretrained(
    folder: str | os.PathLike[str],
    config: DecoderConfig,
    params: Params,
    *,
    extra_fields: Mapping[str, Any] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` as transformers would.

    Tensors keep their dtype. Each file is whole or as it was before (`ogrpo.system.files`).

    Args:
      folder: created if it does not exist.
      config: the model's shape.
      params: its parameters.
      extra_fields: further fields of `config.json`, such as `eos_token_id`.

    Raises:
      ValueError: parameters that are not of this shape, an extra field that contradicts it, or a
        folder that holds a sharded model, which some readers would go on to prefer.
      OSError: the folder cannot be written, or the disk is full; names the file.
    """
    folder = Path(folder)
    _check_params(config, params)
    fields = {**config.to_hf(), "dtype": str(params["embed_tokens"]["weight"].dtype)}
    clash = sorted(fields.keys() & (extra_fields or {}).keys())
    if clash:
        raise ValueError(f"extra_fields {clash} are the model's own; they come from its config")
    if (folder / INDEX).exists():
        raise ValueError(f"{folder} holds shards ({INDEX}); save to another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / MODEL, _named_arrays(config, params))
    write_json(folder / _CONFIG, dict(sorted({**fields, **(extra_fields or {})}.items())))


def write_tensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write a safetensors file, whole or not at all, with the permissions that the umask says.

    Raises:
      OSError: the folder cannot be written, or the disk is full; names the file.
    """
    with replacing_file(file) as draft:
        try:
            save_file(tensors, draft, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"{file} cannot be written: {error}") from error


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


def _check_tensors(config: DecoderConfig, tensors: Mapping[str, Any]) -> None:
    if config.num_layers > len(tensors):  # told without making a name for each
        raise ValueError(
            f"the checkpoint lacks layers: config.json has num_hidden_layers {config.num_layers},"
            f" and there are {len(tensors)} tensors in all"
        )
    slots = tensor_slots(config)
    missing = [name for name in slots if name not in tensors]
    if missing:
        raise ValueError(f"the checkpoint lacks {some(missing)}, which {config.architecture} has")
    unknown = sorted(tensors.keys() - slots.keys() - ({_HEAD} if config.tie_embeddings else set()))
    if unknown:
        raise ValueError(f"the checkpoint has {some(unknown)}, unknown to {config.architecture}")
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
    bad = np.count_nonzero(~np.isfinite(row))
    return (
        f"{file_of(folder, name)}: {name} has {bad:,} of {row.size:,} weights that are NaN or"
        f" infinite as {row.dtype}: the model is broken, take an earlier copy of it"
    )


def _path(keys: Any) -> tuple[str, ...]:
    return tuple(key.key for key in keys)
