"""Memory that compiling costs on a CPU: activations kept twice, and freed memory that stays."""

import ctypes
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LEAST_SECONDS = 0.5

CompilerOptions = dict[str, str]


def compiler_options(computed_in: DTypeLike) -> CompilerOptions | None:
    """Returns options of `jax.jit` that keep XLA's CPU compiler from widening activations.

    It has no slices of bfloat16: it would widen the inputs of all layers, kept for the backward
    pass, before the loop that reads one at a time, and then holds them twice. Accelerators do not,
    and in float32 there is nothing to widen: None.
    """
    if jax.default_backend() != "cpu" or jnp.dtype(computed_in).itemsize >= 4:
        return None
    return {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


@cache
def give_back_after_compiling() -> bool:
    """Returns freed memory to the system after each compilation of half a second.

    XLA's compiler frees its memory, but the C library keeps most of it for the process: some
    300 MiB after compiling an update, which then count in the peak of the update itself.

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
