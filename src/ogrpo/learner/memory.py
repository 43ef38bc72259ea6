"""Memory that compiling costs on a CPU: activations kept twice, and freed memory that stays."""

import ctypes
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

_COMPILED = "/jax/core/compile/backend_compile_duration"
LEAST_SECONDS = 0.5
"""Of work after which memory is given back."""

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


def give_back() -> bool:
    """Returns freed memory to the system, which the C library would keep for the process.

    Sampling with SmolLM2-135M leaves some 650 MiB, which then count in the peak of the update.

    Returns:
      Whether the C library has a way to (`malloc_trim`, of glibc); nothing is done elsewhere.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
    return trim is not None


@cache
def give_back_after_compiling() -> None:
    """Returns freed memory to the system after each compilation of half a second.

    XLA's compiler leaves some 300 MiB after compiling an update.
    """

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED and duration_secs >= LEAST_SECONDS:
            give_back()

    jax.monitoring.register_event_duration_secs_listener(listen)
