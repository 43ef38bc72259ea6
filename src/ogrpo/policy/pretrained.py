"""Hugging Face folders: `config.json` and `*.safetensors`, read and written without torch.

Tensors are in one file, or in shards with their index. Names in an index are plain file names of
its folder: a path, `..` or an absolute one is refused. A file of the folder may be a symbolic link,
as all are in the hub's cache, and is followed wherever it leads: who can put links into the folder
can put weights there too.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
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
from ogrpo.policy.flops import parameters
from ogrpo.system.files import read_object, replacing_file, write_json

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
GIB = 2**30
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
_CONFIG = "config.json"
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_FLOATS = ("F32", "F16", "BF16")


class Slot(NamedTuple):
    """The place of a checkpoint's tensor: a leaf of the parameters and, if stacked, its layer."""

    path: tuple[str, ...]
    layer: int | None
    shape: tuple[int, ...]


def tensor_slots(config: DecoderConfig) -> dict[str, Slot]:
    """Returns the checkpoint's tensors by their Hugging Face names, in a fixed order."""
    slots = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(param_shapes(config)):
        path = _path(keys)
        if path[0] == "layers":
            for layer in range(config.num_layers):
                name = ".".join(("model", "layers", str(layer), *path[1:]))
                slots[name] = Slot(path, layer, leaf.shape[1:])
        else:
            prefix = () if path[0] == "lm_head" else ("model",)
            slots[".".join((*prefix, *path))] = Slot(path, None, leaf.shape)
    return slots


def to_tensors(config: DecoderConfig, params: Params) -> dict[str, np.ndarray]:
    """Returns parameters as host arrays by Hugging Face name; layers are views of a stack."""
    host = jax.tree.map(np.ascontiguousarray, params)
    tensors = {}
    for name, slot in tensor_slots(config).items():
        leaf = _at(host, slot.path)
        tensors[name] = leaf if slot.layer is None else leaf[slot.layer]
    return tensors


def from_tensors(
    config: DecoderConfig, dtype: DTypeLike, get: Callable[[str], np.ndarray]
) -> Params:
    """Returns parameters of tensors, by their Hugging Face names; holds one leaf more at most."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, slot in tensor_slots(config).items():
        names.setdefault(slot.path, []).append(name)

    def leaf(keys: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        path = _path(keys)
        host = np.empty(shape.shape, dtype)
        rows = host if path[0] == "layers" else host[None]
        for row, name in zip(rows, names[path], strict=True):
            row[...] = get(name)
        return jnp.asarray(host)

    return jax.tree_util.tree_map_with_path(leaf, param_shapes(config))


def load_pretrained(
    folder: str | os.PathLike[str], dtype: DTypeLike
) -> tuple[DecoderConfig, Params]:
    """Reads a model from a Hugging Face folder.

    Nothing is allocated before the config agrees with the headers of the files, which agree with
    their sizes, and the weights with the memory that is free.

    Args:
      folder: holds `config.json` and `model.safetensors`, or shards with their
        `model.safetensors.index.json`.
      dtype: of the parameters, and so of the computation; tensors are converted to it.

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

        def finite(name: str) -> np.ndarray:
            tensor = tensors[name].get_tensor(name).astype(dtype, copy=False)
            if bad := np.count_nonzero(~np.isfinite(tensor)):
                one = folder / MODEL
                file = one if one.is_file() else folder / _read_index(folder / INDEX)[name]
                raise ValueError(
                    f"{file}: {name} has {bad:,} of {tensor.size:,} weights that"
                    f" are NaN or infinite as {tensor.dtype}: the model is broken, take an earlier"
                    " copy of it"
                )
            return tensor

        return config, from_tensors(config, dtype, finite)


def load_config(folder: str | os.PathLike[str]) -> DecoderConfig:
    """Reads the model's shape from a Hugging Face folder's `config.json`."""
    file = Path(folder) / _CONFIG
    fields = read_object(file, "; a Hugging Face model folder is expected")
    return DecoderConfig.from_hf(fields, str(file))


def save_pretrained(
    folder: str | os.PathLike[str],
    config: DecoderConfig,
    params: Params,
    *,
    extra_fields: Mapping[str, Any] | None = None,
) -> None:
    """Writes `config.json` and `model.safetensors` as transformers would.

    Tensors keep their dtype. Each file is whole or as it was before (`ogrpo.system.files`).

    Args:
      folder: created if it does not exist.
      extra_fields: further fields of `config.json`, such as `eos_token_id`.

    Raises:
      ValueError: parameters that are not of this shape, an extra field that contradicts it, or a
        folder that holds a sharded model, which some readers would go on to prefer.
      OSError: the folder cannot be written, or the disk is full; names the file.
    """
    folder = Path(folder)
    shapes = param_shapes(config)
    expected, actual = jax.tree.structure(shapes), jax.tree.structure(params)
    if expected != actual:
        raise ValueError(f"{config.architecture} has the parameters {expected}, got {actual}")
    for name, slot in tensor_slots(config).items():
        expected, actual = (jnp.shape(_at(tree, slot.path)) for tree in (shapes, params))
        if expected != actual:
            raise ValueError(f"the parameter behind {name} has shape {actual}, not {expected}")
    fields = {**config.to_hf(), "dtype": str(params["embed_tokens"]["weight"].dtype)}
    if clash := sorted(fields.keys() & (extra_fields or {}).keys()):
        raise ValueError(f"extra_fields {clash} belong to the model; they come from its config")
    if (folder / INDEX).exists():
        raise ValueError(f"{folder} holds shards ({INDEX}); save to another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / MODEL, to_tensors(config, params))
    write_json(folder / _CONFIG, dict(sorted({**fields, **(extra_fields or {})}.items())))


def write_tensors(file: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file, whole or not at all, with the permissions that the umask says.

    Raises:
      OSError: the folder cannot be written, or the disk is full; names the file.
    """
    with replacing_file(file) as draft:
        try:
            save_file(tensors, draft, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"{file} cannot be written: {error}") from error


def _at(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _check_tensors(config: DecoderConfig, tensors: Mapping[str, Any]) -> None:
    if config.num_layers > len(tensors):  # before making a name for each
        raise ValueError(
            f"the checkpoint lacks layers: config.json has num_hidden_layers {config.num_layers},"
            f" and there are {len(tensors)} tensors in all"
        )
    slots = tensor_slots(config)
    if missing := [name for name in slots if name not in tensors]:
        raise ValueError(f"the checkpoint lacks {_some(missing)}, which {config.architecture} has")
    unknown = sorted(tensors.keys() - slots.keys() - ({_HEAD} if config.tie_embeddings else set()))
    if unknown:
        raise ValueError(f"the checkpoint has {_some(unknown)}, unknown to {config.architecture}")
    for name, slot in slots.items():
        stored = tensors[name].get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        if shape != slot.shape:
            raise ValueError(
                f"{name} has shape {list(shape)} in the checkpoint; config.json makes it"
                f" {list(slot.shape)}"
            )
        if dtype not in _FLOATS:
            raise ValueError(f"{name} is stored as {dtype}; supported: {', '.join(_FLOATS)}")
    if config.tie_embeddings and _HEAD in tensors:
        head = tensors[_HEAD].get_tensor(_HEAD)
        if not np.array_equal(head, tensors[_EMBEDDING].get_tensor(_EMBEDDING)):
            raise ValueError(
                f"config.json ties the embeddings, but {_HEAD} differs from {_EMBEDDING};"
                ' set "tie_word_embeddings": false to keep both'
            )


def _path(keys: Any) -> tuple[str, ...]:
    return tuple(key.key for key in keys)


def open_tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Maps each tensor's name to the open file that holds it, the one that an index names.

    Raises:
      ValueError: a file is missing or unreadable, the index is wrong, or its shards hold less or
        more than it says; with the file's name.
    """
    if (folder / MODEL).is_file():
        opened = _open(folder / MODEL, stack)
        return dict.fromkeys(opened.keys(), opened)
    if not (folder / INDEX).is_file():
        raise ValueError(
            f"{folder} has neither {MODEL} nor {INDEX}; a checkpoint in another format must be"
            " saved as safetensors first (transformers: model.save_pretrained)"
        )
    places = _read_index(folder / INDEX)
    shards = {name: _open(folder / name, stack) for name in sorted(set(places.values()))}
    held = {name: set(opened.keys()) for name, opened in shards.items()}
    for tensor, name in places.items():
        if tensor not in held[name]:
            raise ValueError(f"{folder / name} lacks {tensor}, which {INDEX} says is there")
    for name, tensors in held.items():
        if extra := sorted(tensors - places.keys()):
            raise ValueError(f"{folder / name} has {_some(extra)}, which {INDEX} does not name")
    return {tensor: shards[name] for tensor, name in places.items()}


def _open(file: Path, stack: ExitStack) -> Any:
    if not file.is_file():
        raise ValueError(f"{file} does not exist or is no regular file: the model is incomplete")
    try:
        return stack.enter_context(safe_open(file, "np"))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is not a readable safetensors file: {error}") from error


def _read_index(file: Path) -> Mapping[str, str]:
    """Returns the file name of each tensor."""
    places = read_object(file).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{file} has no 'weight_map' from tensors to files")
    for tensor, name in places.items():
        plain = isinstance(name, str) and name.endswith(".safetensors") and not {*"/\\\0"} & {*name}
        if not plain:
            raise ValueError(
                f"{file}: 'weight_map' puts {tensor!r:.80} into {name!r:.80}: give the name of a"
                " .safetensors file in the same folder, without a path"
            )
    return places


def _some(names: list[str]) -> str:
    """Lists the first names of tensors and counts the others."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more tensors"


def check_room(config: DecoderConfig, dtype: DTypeLike, what: str) -> None:
    """Refuses weights that are larger than the free memory.

    Raises:
      ValueError: they are; names `what` they are of, both sizes, and what helps.
    """
    count, free = parameters(config), free_bytes()
    need = count * np.dtype(dtype).itemsize
    if free is not None and need > free:
        fits_in_bfloat16 = 2 * count <= free
        dtypes = "bfloat16 (--model.dtype; --dtype of ogrpo-serve), " if fits_in_bfloat16 else ""
        raise ValueError(
            f"{what}: the weights take {need / GIB:,.1f} GiB in {np.dtype(dtype).name}, and"
            f" {free / GIB:,.1f} GiB of memory are free here: give {dtypes}a smaller model or"
            " more memory"
        )


def free_bytes() -> int | None:
    """Returns the free bytes of the first device, its machine or container; None: unknown."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
        return None if limit is None else limit - used
    sizes = []
    with suppress(OSError):  # no Linux
        fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        kib = (fields[name].split()[0] for name in ("MemAvailable", "SwapFree"))
        sizes.append(1024 * sum(map(int, kib)))
    with suppress(OSError):  # no control group of version 2
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        if limit != "max":  # its page cache is free as well
            cache = int(stats.get("inactive_file", 0)) + int(stats.get("active_file", 0))
            sizes.append(max(0, int(limit) - used + cache))
    return min(sizes, default=None)
