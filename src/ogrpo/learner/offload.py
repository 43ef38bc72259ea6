"""Adam's moments and the reference policy in the host's memory while nobody needs them.

An update needs moments when the backward pass is done and what layers keep is gone: until then they
lie in memory of the host that the device reaches ("pinned_host"), and go back there afterwards. The
reference policy is read before the update, for its log-probs alone, and never changed: a copy comes
to the device, and is let go of.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
from jax import lax

from ogrpo.learner.state import TrainState

Tree = TypeVar("Tree")

HOST = "pinned_host"


class Storage(NamedTuple):
    """Functions that move a policy to where it lies while unused, and back."""

    keep: Callable[[Any], Any]
    """The policy there; of shapes with their places, those that it has there."""
    fetch: Callable[[Any], Any]
    """What `keep` returned, on the device."""


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


def _lying(kind: str, tree: Any) -> Any:
    return jax.tree.map(partial(_moved, kind), tree)


def _moved(kind: str, leaf: Any) -> Any:
    there = leaf.sharding.with_memory_kind(kind)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there)
    return jax.device_put(leaf, there)


def _as_it_is(tree: Any) -> Any:
    return tree


DEVICE_MEMORY = Storage(_as_it_is, _as_it_is)
HOST_MEMORY = Storage(partial(_lying, HOST), partial(_lying, "device"))
