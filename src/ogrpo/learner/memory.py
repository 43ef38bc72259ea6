"""Memory that compiling leaves behind.

XLA's compiler frees what it allocated, but the C library keeps most of it for the process: some
300 MiB after compiling an update, which then count in the peak of the update itself. glibc gives it
back when asked.
"""

import ctypes
from functools import cache
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LEAST_SECONDS = 0.5


@cache
def give_back_after_compiling() -> bool:
    """From now on, return freed memory to the system after each compilation of half a second.

    Returns:
      Whether the C library has a way to (`malloc_trim`, of glibc); nothing is done elsewhere.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED and duration_secs >= _LEAST_SECONDS:
            trim(ctypes.c_size_t(0))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return True
