"""Converts a GGUF file to a Hugging Face folder, which appears whole or not at all."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np

from ogrpo.models.gguf_file import GgufFile, read_tokenizer
from ogrpo.policy.pretrained import write_tensors
from ogrpo.system.files import write_json

Dtype = Literal["float32", "bfloat16"]
Show = Callable[[str, int, int], None]
"""Shows progress: the work, how much is done, of how much."""
SOURCE = "source.json"
"""The file in a converted folder that names its origin."""


def silent(what: str, done: int, of: int) -> None:
    """Shows nothing."""


def convert(file: Path, folder: Path, *, dtype: Dtype = "float32", show: Show = silent) -> Path:
    """Writes `config.json`, `model.safetensors`, the tokenizer and the chat template.

    Args:
      file: a GGUF file.
      folder: is made; it may exist if it is empty.
      dtype: of the weights that are written. float32 holds what the file holds to the last bit.

    Raises:
      ValueError: the file cannot be converted (`GgufFile`, `read_tokenizer`), or the folder has
        something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder: name another one")
    source = GgufFile(file)
    tokenizer = read_tokenizer(source)
    config = source.config
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{file} has {tokenizer.vocab_size} tokens, and embeddings of {config.vocab_size}"
        )
    stored = np.dtype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    weights: dict[str, np.ndarray] = {}
    for name, weight in source.tensors():
        weights[name] = np.ascontiguousarray(weight, stored)
        show("converting", len(weights), len(source.names))
    with whole_folder(folder) as draft:
        tokenizer.save(draft)
        write_tensors(draft / "model.safetensors", weights)
        fields = config.to_hf() | tokenizer.ends | {"dtype": dtype}
        write_json(draft / "config.json", dict(sorted(fields.items())))
        origin = {"file": file.name, "sha256": digest_of(file), "name": source.get("general.name")}
        write_json(draft / SOURCE, origin | {"license": source.get("general.license")})
    return folder


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder that is named `folder` at the end of the block, unless another is by then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        draft = Path(scratch) / "draft"
        draft.mkdir()
        yield draft
        try:
            os.replace(draft, folder)
        except OSError:
            if not (folder / "config.json").is_file():  # nobody else has made the same meanwhile
                raise
            shutil.rmtree(draft)


def digest_of(file: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
