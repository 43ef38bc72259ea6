"""Memory: the compiler's, freed and not returned, and the host's for moments and the reference.

An update needs moments when the backward pass is done and what layers keep is gone: until then they
lie in memory of the host that the device reaches ("pinned_host"), and go back there afterwards. The
reference policy is read before the update, for its log-probs alone, and never changed: a copy comes
to the device, and is let go of.
"""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ogrpo.learner.state import TrainState

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LEAST_SECONDS = 0.5

HOST = "pinned_host"
Tree = TypeVar("Tree")
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


class Storage(NamedTuple):
    """Functions that move a policy to its place while it is unused, and back."""

    keep: Callable[[Any], Any]
    """The policy there; of shapes with their places, those that it has there."""
    fetch: Callable[[Any], Any]
    """The result of `keep`, on the device."""


def check_host_memory() -> None:
    """Raises ValueError where the device reaches no memory of its host."""
    device = jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        raise ValueError(
            f"optimizer.offload asks for {HOST} memory, and a device of this platform"
            f" ({device.platform}: {device.device_kind}) has {', '.join(kinds) or 'none'}: leave"
            " the option out"
        )


def on_host(placed: Tree) -> Tree:
    """Returns shardings of a train state whose moments lie in the host's memory."""
    moments: Any = jax.tree.map(lambda to: to.with_memory_kind(HOST), placed.opt_state)  # type: ignore[attr-defined]
    return replace(placed, opt_state=moments)  # type: ignore[type-var]


def fetched(state: TrainState, after: Any) -> TrainState:
    """Returns the state with its moments on the device, not before `after` is there; under jit."""
    moments, _ = lax.optimization_barrier((state.opt_state, after))
    return replace(state, opt_state=jax.device_put(moments, jax.memory.Space.Device))


def put_back(state: TrainState) -> TrainState:
    """Returns the state with its moments in the host's memory; under `jax.jit`."""
    return replace(state, opt_state=jax.device_put(state.opt_state, jax.memory.Space.Host))


def _move(kind: str, tree: Any) -> Any:
    def move(leaf: Any) -> Any:
        place = leaf.sharding.with_memory_kind(kind)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
        return jax.device_put(leaf, place)

    return jax.tree.map(move, tree)


DEVICE_MEMORY = Storage(lambda tree: tree, lambda tree: tree)
HOST_MEMORY = Storage(partial(_move, HOST), partial(_move, "device"))
