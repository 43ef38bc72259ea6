"""Communication between the processes of one run; a run of one process has none.

Every process runs the same program on the same values, and each holds a share of every array. Two
things cross over on the host: what the first process alone knows (`from_first`), and whole copies
of arrays (`fetch`). All processes call these in the same order.

What the first process says is sent through JAX's coordination service and not over the devices: it
may take minutes to have an answer, and devices that wait for each other give up earlier.
"""

import itertools
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

T = TypeVar("T")
PATIENCE = timedelta(days=1)
"""How long a process waits for another's word; one that died is noticed earlier (heartbeats)."""
PIECE = 1 << 20
"""Bytes of one message to the coordination service."""
_turns = itertools.count()


def several() -> bool:
    """Whether the run has more than one process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes, and talks to servers; one alone is."""
    return jax.process_index() == 0


def from_first(fn: Callable[[], T]) -> T:
    """Calls `fn` in the first process alone, and returns its result or raises its error in all.

    What it returns is pickled; an error that cannot be becomes a RuntimeError of the same words.
    """
    if not several():
        return fn()
    outcome: Any = (True, None)
    if is_first():
        try:
            outcome = True, fn()
        except Exception as error:  # Not handled here: every process raises it.
            outcome = False, _portable(error)
    client, name, patience = _service()
    if is_first():
        data = pickle.dumps(outcome)
        pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
        for n, piece in enumerate(pieces):
            client.key_value_set_bytes(f"{name}/{n}", piece)
        client.key_value_set_bytes(f"{name}/pieces", str(len(pieces)).encode())
    else:
        count = int(client.blocking_key_value_get_bytes(f"{name}/pieces", patience))
        read = (client.blocking_key_value_get_bytes(f"{name}/{n}", patience) for n in range(count))
        outcome = pickle.loads(b"".join(read))
    _clear(client, name, patience)
    whole, result = outcome
    if not whole:
        raise result
    return cast(T, result)


def on_first(fn: Callable[[], T]) -> T | None:
    """Calls `fn` in the first process alone; returns its result there, and None elsewhere.

    All raise its error.
    """
    results: list[T] = []
    from_first(lambda: results.append(fn()))
    return results[0] if results else None


def everyone(value: T) -> list[T]:
    """Returns what each process says, in the order of the processes."""
    if not several():
        return [value]
    client, name, patience = _service()
    client.key_value_set_bytes(f"{name}/{jax.process_index():08d}", pickle.dumps(value))
    client.wait_at_barrier(f"{name}/said", patience)
    entries = sorted(client.key_value_dir_get_bytes(f"{name}/"))
    _clear(client, name, patience)
    return [pickle.loads(data) for _, data in entries]


def assembled(value: T, *, seconds: float) -> list[T] | None:
    """Returns what each process says, if all come to this exchange within so many seconds.

    For a process that an error stopped, and that cannot know whether the others met it too. Call it
    once in a process. It returns None where some did not come in time, or came from another place
    of the program.
    """
    if not several():
        return [value]
    client, name = multihost.get_jax_distributed_client(), "ogrpo/assembled"
    turn = next(_turns)
    try:
        client.key_value_set_bytes(f"{name}/{jax.process_index():08d}", pickle.dumps((turn, value)))
        client.wait_at_barrier(f"{name}/all", int(seconds * 1000))
    except jax.errors.JaxRuntimeError:
        return None
    said = [pickle.loads(data) for _, data in sorted(client.key_value_dir_get_bytes(f"{name}/"))]
    return [value for _, value in said] if len({turn for turn, _ in said}) == 1 else None


def fetch(tree: Any, *, everywhere: bool = True) -> Any:
    """Returns a tree of arrays with each whole on the host; with one process the tree itself.

    Args:
      tree: whose arrays are cut over the processes, or copies of each other in all of them.
      everywhere: False leaves None in place of each array in all processes but the first; only one
        array at a time is then whole there.
    """
    if not several():
        return tree

    def whole(leaf: Any) -> np.ndarray | None:
        cut = isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        if cut and not leaf.is_fully_replicated:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf) if everywhere or is_first() else None

    return jax.tree.map(whole, tree)


def _portable(error: Exception) -> Exception:
    """Returns the error, or one with the same words where it cannot be serialised."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a __reduce__ of a library's own may raise anything
        portable = RuntimeError(f"{type(error).__name__}: {error}")
        portable.__cause__ = error
        return portable
    return error


def _service() -> tuple[Any, str, int]:
    """Returns JAX's coordination service, the name of this exchange, and milliseconds to wait."""
    patience = int(PATIENCE.total_seconds() * 1000)
    return multihost.get_jax_distributed_client(), f"ogrpo/{next(_turns)}", patience


def _clear(client: Any, name: str, patience: int) -> None:
    """Deletes an exchange once every process has read it."""
    client.wait_at_barrier(f"{name}/read", patience)
    if is_first():
        client.key_value_delete(f"{name}/")
