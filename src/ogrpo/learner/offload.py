"""Adam's moments in the host's memory between updates.

An update needs them when the backward pass is done and what layers keep is gone: until then they
lie in memory of the host that the device reaches ("pinned_host"), and go back there afterwards.
"""

from dataclasses import replace
from typing import Any, TypeVar

import jax
from jax import lax

from ogrpo.learner.state import TrainState

Tree = TypeVar("Tree")

HOST = "pinned_host"


def check_host_memory() -> None:
    """Raise ValueError where the device reaches no memory of its host."""
    device = jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    if HOST not in kinds:
        raise ValueError(
            f"optimizer.offload asks for {HOST} memory, and a device of this platform"
            f" ({device.platform}: {device.device_kind}) has {', '.join(kinds) or 'none'}: leave"
            " the option out"
        )


def on_host(placed: Tree) -> Tree:
    """Shardings of a train state with the moments in the host's memory."""
    moments: Any = jax.tree.map(lambda to: to.with_memory_kind(HOST), placed.opt_state)  # type: ignore[attr-defined]
    return replace(placed, opt_state=moments)  # type: ignore[type-var]


def fetched(state: TrainState, after: Any) -> TrainState:
    """The state with its moments on the device, not before `after` is there; under `jax.jit`."""
    moments, _ = lax.optimization_barrier((state.opt_state, after))
    return replace(state, opt_state=jax.device_put(moments, jax.memory.Space.Device))


def put_back(state: TrainState) -> TrainState:
    """The state with its moments in the host's memory; under `jax.jit`."""
    return replace(state, opt_state=jax.device_put(state.opt_state, jax.memory.Space.Host))
