"""How a gradient becomes new weights, and when it does not."""

from dataclasses import replace
from typing import Any

import jax
import optax
from jax import Array

from ogrpo.learner.finite import all_finite, choose
from ogrpo.learner.state import Direction, Params, TrainState, at_rate, is_large, step_updates


def guarded(
    state: TrainState,
    grads: Params,
    optimizer: optax.GradientTransformation,
    learning_rate: Array | None,
    is_finite: Array,
) -> tuple[TrainState, Array]:
    """Applies a gradient where all is finite; returns the state and whether it was applied.

    The state stays as it is unless `is_finite` holds and the new weights are finite. A large
    model's are computed twice, to be looked at and then in place: a select between old and new
    ones, which rounds as an update without the guard does, would hold both. Where the moments
    are smaller than the weights (factored), computing twice would hold more than the select
    does.
    """
    trained = replace(state, frozen=())  # a branch would copy what it passes on

    def step(state: TrainState, grads: Params) -> TrainState:
        return apply_gradient(state, grads, optimizer, learning_rate)

    def keep(state: TrainState, _: Params) -> TrainState:
        return state

    looked_at = step(trained, grads)
    taken = all_finite(looked_at.params, also=is_finite)
    if is_large(state.params) and _bytes(trained.opt_state) >= _bytes(trained.params):
        after = jax.lax.cond(taken, step, keep, trained, grads)
    else:
        after = choose(taken, looked_at, trained)
    return replace(after, frozen=state.frozen), taken


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def apply_gradient(
    state: TrainState,
    grads: Params,
    optimizer: optax.GradientTransformation,
    learning_rate: Array | None,
) -> TrainState:
    """Returns theta + Optax's updates, or theta - learning_rate * direction of a `Direction`.

    Each parameter is updated in its own dtype.

    Raises:
      ValueError: the learning rate is missing, or has no effect (see `at_rate`).
    """
    directed = isinstance(optimizer, Direction)
    opt_state = state.opt_state if directed else at_rate(state.opt_state, learning_rate)
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam raises a float to an integer
        updates, opt_state = optimizer.update(grads, opt_state, state.params)
    steps = step_updates(updates, learning_rate) if directed else updates
    params = optax.apply_updates(state.params, steps)
    return replace(state, params=params, opt_state=opt_state, updates=state.updates + 1)
