"""Frees much memory, says that something was compiled, and prints what stayed; run by a test."""

import re
from pathlib import Path

import jax
import numpy as np

from ogrpo.learner.memory import give_back, give_back_after_compiling

CHUNKS, SIZE = 4096, 65536  # 256 MiB in chunks too small to be mapped one by one


def resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def compile_event() -> str:
    """The name under which this version of JAX tells of a compilation."""
    seen = set()
    jax.monitoring.register_event_duration_secs_listener(lambda event, _, **__: seen.add(event))
    jax.jit(lambda x: x + 1)(np.float32(1))
    [name] = [name for name in seen if "backend_compile" in name]
    return name


if __name__ == "__main__":
    event = compile_event()
    give_back_after_compiling()
    assert give_back()
    chunks = [b"1" * SIZE for _ in range(CHUNKS)]
    del chunks[:-1]  # the last one keeps the heap from shrinking by itself
    figures = [resident()]
    for seconds in (0.1, 1.0):
        jax.monitoring.record_event_duration_secs(event, seconds)
        figures.append(resident())
    print(*figures)
