"""What changed between two versions of a model, without loss.

A bf16 tensor changes in few elements at the learning rates of reinforcement learning: most updates
are smaller than half a unit in the last place. The changed elements are sent as flat positions
(uint32) and new bit patterns; bits are compared, not values, so that the patched file is the file.
"""

from collections.abc import Mapping

import numpy as np

from ogrpo.rollout.weights.tensors import Tensors

_BITS: Mapping[int, type[np.unsignedinteger]] = {2: np.uint16, 4: np.uint32}
_MOST = 1 << 32


def changes(old: Tensors, new: Tensors) -> dict[str, np.ndarray] | None:
    """`{name@index, name@value}` of the changed elements, or None where the layouts differ."""
    if old.keys() != new.keys():
        return None
    found: dict[str, np.ndarray] = {}
    for name, after in new.items():
        before = old[name]
        same_layout = before.shape == after.shape and before.dtype == after.dtype
        if not same_layout or after.size >= _MOST:
            return None
        index, value = _changed(before, after)
        if index.size:
            found[f"{name}@index"], found[f"{name}@value"] = index, value
    return found


def _changed(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = _BITS[after.dtype.itemsize]
    flat = np.ascontiguousarray(after).reshape(-1).view(bits)
    index = np.flatnonzero(np.ascontiguousarray(before).reshape(-1).view(bits) != flat)
    return index.astype(np.uint32), flat[index]


def size(delta: Tensors) -> int:
    """Bytes of the changes."""
    return sum(array.nbytes for array in delta.values())


def changed_share(delta: Tensors, new: Tensors) -> float:
    """Share of the elements that changed."""
    changed = sum(array.size for name, array in delta.items() if name.endswith("@index"))
    return changed / sum(array.size for array in new.values())
