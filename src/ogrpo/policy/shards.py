"""Where the tensors of a Hugging Face folder are: one file, or shards with their index.

Names in an index are plain file names of its folder: a path, `..` or an absolute one is refused. A
file of the folder may be a symbolic link, as all are in the hub's cache, and is followed wherever
it leads: who can put links into the folder can put weights there too.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ogrpo.system import files

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object, with a ValueError naming the file if it is not there or is not one."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist; a Hugging Face model folder is expected")
    value = files.read_json(file)
    if not isinstance(value, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value


def open_tensors(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Each tensor's name with the open file that holds it; of a shard, what the index says.

    A tensor may stand in other shards too: it is read from the one that the index names.

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
    _check_shards(folder, places, shards)
    return {tensor: shards[name] for tensor, name in places.items()}


def file_of(folder: Path, tensor: str) -> Path:
    """The file that a tensor of a whole folder is read from."""
    one = folder / MODEL
    return one if one.is_file() else folder / _read_index(folder / INDEX)[tensor]


def _open(file: Path, stack: ExitStack) -> Any:
    if not file.is_file():
        raise ValueError(f"{file} does not exist or is no regular file: the model is incomplete")
    try:
        return stack.enter_context(safe_open(file, "np"))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} is not a readable safetensors file: {error}") from error


def _read_index(file: Path) -> Mapping[str, str]:
    """Tensor -> file name."""
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


def _check_shards(folder: Path, places: Mapping[str, str], shards: Mapping[str, Any]) -> None:
    held = {name: set(opened.keys()) for name, opened in shards.items()}
    for tensor, name in places.items():
        if tensor not in held[name]:
            raise ValueError(f"{folder / name} lacks {tensor}, which {INDEX} says is there")
    for name, tensors in held.items():
        extra = sorted(tensors - places.keys())
        if extra:
            raise ValueError(f"{folder / name} has {some(extra)}, which {INDEX} does not name")


def some(names: list[str]) -> str:
    """The first names of tensors, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more tensors"
