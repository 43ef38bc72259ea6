"""Whether a model's weights fit into memory, asked before any is made."""

from pathlib import Path

import jax
import numpy as np
from jax.typing import DTypeLike

from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.flops import parameters

GIB = 2**30
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def check_room(config: DecoderConfig, dtype: DTypeLike, what: str) -> None:
    """Refuse weights that are larger than the free memory.

    Raises:
      ValueError: they are; names `what` they are of, both sizes, and what helps.
    """
    need, free = parameters(config).total * np.dtype(dtype).itemsize, free_bytes()
    if free is not None and need > free:
        raise ValueError(
            f"{what}: the weights take {need / GIB:,.1f} GiB in {np.dtype(dtype).name}, and"
            f" {free / GIB:,.1f} GiB of memory are free here: give --model.dtype bfloat16, a"
            " smaller model or more memory"
        )


def free_bytes() -> int | None:
    """Bytes that the first device has left; of a CPU, its machine or container. None: unknown."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        found = [size for size in (_of_machine(), _of_container()) if size is not None]
        return min(found, default=None)
    found = device.memory_stats() or {}
    if "bytes_limit" not in found:
        return None
    return found["bytes_limit"] - found.get("bytes_in_use", 0)


def _of_machine() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:  # no Linux
        return None
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)
    }
    return sizes["MemAvailable"] + sizes["SwapFree"]


def _of_container() -> int | None:
    """What a control group (version 2) leaves; its page cache can be given back."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:  # no such group
        return None
    if limit == "max":
        return None
    found = dict(line.split() for line in lines)
    cache = int(found.get("inactive_file", 0)) + int(found.get("active_file", 0))
    return max(0, int(limit) - used + cache)
