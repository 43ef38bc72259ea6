"""Safetensors files, written in one pass with their digest, and read in place.

The layout (Hugging Face's safetensors 0.x): a little-endian u64, that many bytes of JSON mapping
names to dtype, shape and offsets, then the tensors' bytes. It is a function of names, dtypes and
shapes alone, so that two versions of a model differ in tensor bytes only.
"""

import hashlib
import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ogrpo.rollout.extension import ogrpo_releases as releases

Tensors = Mapping[str, np.ndarray]
DTYPES: Mapping[str, Any] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHUNK = 1 << 22


class AdapterTensors(NamedTuple):
    """Low-rank adapters as PEFT names them, with what the manifest of their release says.

    Attributes:
        tensors: A `[rank, in]` and B `[out, rank]` of each projection of each layer.
        rank: r.
        alpha: a projection is W + alpha / rank B A.
        targets: the projections' names.
    """

    tensors: Tensors
    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def about(self) -> dict[str, Any]:
        """Returns what the manifest says."""
        return {"rank": self.rank, "alpha": self.alpha, "targets": [*self.targets]}


def describe(tensors: Tensors) -> dict[str, dict[str, Any]]:
    """Dtype and shape of each tensor, by name."""
    return {
        name: {"dtype": _dtype_name(name, array), "shape": list(array.shape)}
        for name, array in sorted(tensors.items())
    }


def _dtype_name(name: str, array: np.ndarray) -> str:
    if array.dtype not in NAMES:
        raise ValueError(f"{name} is {array.dtype}; supported: {', '.join(map(str, NAMES))}")
    return NAMES[array.dtype]


def write(file: Path, tensors: Tensors) -> tuple[str, int]:
    """Writes a file, flushed to the disk; returns its sha256 and its size in bytes."""
    sha256, size = hashlib.sha256(), 0
    with _Beside(sha256.update) as hashing, file.open("wb", buffering=0) as out:
        for piece in _pieces(tensors):
            hashing.put(piece)
            out.write(piece)
            size += len(piece)
        os.fsync(out.fileno())
    return sha256.hexdigest(), size


def _pieces(tensors: Tensors) -> Iterator[memoryview]:
    header, offset = describe(tensors), 0
    for name, entry in header.items():
        entry["data_offsets"] = [offset, offset + tensors[name].nbytes]
        offset += tensors[name].nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in header:
        raw = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data
        yield from (raw[start : start + _CHUNK] for start in range(0, len(raw), _CHUNK))


class _Beside:
    """Work on pieces in a thread, while the disk writes them."""

    def __init__(self, work: Callable[[memoryview], object]) -> None:
        self._queue: queue.Queue[memoryview | None] = queue.Queue(16)
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            self._work(piece)

    def put(self, piece: memoryview) -> None:
        """Hands over a piece, waiting while too many are queued."""
        self._queue.put(piece)

    def __enter__(self) -> "_Beside":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()


def read(file: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, mapped into memory and not writable.

    Raises:
        ValueError: the file is no safetensors file, is cut off, or has a tensor of another dtype;
            names the file.
    """
    try:
        header, start = releases.header(file)
    except releases.Refusal as refusal:
        raise ValueError(f"{file}: {refusal}") from refusal
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{file}: {name} is {entry['dtype']}; supported: {', '.join(DTYPES)}")
    whole = np.memmap(file, np.uint8, "r")[start:]  # a file may hold its header alone
    return {name: _view(whole, entry) for name, entry in header.items()}


def _view(whole: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray:
    begin, end = entry["data_offsets"]
    return whole[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def cast(tensors: Tensors, dtype: np.dtype) -> dict[str, np.ndarray]:
    """The tensors in the dtype that a server serves, copied only where they are in another."""
    return {name: array.astype(dtype, copy=False) for name, array in tensors.items()}


def check_finite(tensors: Tensors) -> None:
    """Raises ValueError naming the first tensor with a NaN or an infinite element."""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if not releases.finite(raw, _dtype_name(name, array)):
            raise ValueError(
                f"{name} has NaN or infinite elements; the policy has diverged: nothing was sent"
            )
