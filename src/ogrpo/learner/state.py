"""The train state, its optimizers, and how a gradient becomes new weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array

from ogrpo.batch import VALUE_HEAD, Frozen, Params
from ogrpo.learner.finite import all_finite, choose

LARGE = 1 << 24  # weights


@flax.struct.dataclass
class TrainState:
    """Everything that an update changes, and the parameters that it leaves as they are.

    Attributes:
      params: the trainer's parameters theta, any pytree.
      opt_state: the Optax state.
      updates: how many updates were taken, int32 scalar.
      region: the trust region's own state; () where there is none.
      frozen: the policy's other parameters, a nested dict that `params` is joined to; empty where
        everything is trained. Updates share it, and never free it.
    """

    params: Params
    opt_state: optax.OptState
    updates: Array
    region: Any = ()
    frozen: Frozen = ()

    def whole(self, params: Params | None = None) -> Params:
        """Returns all parameters of the policy, or of an earlier one with these trained `params`.

        A value head is none of them.
        """
        policy = join(self.params if params is None else params, self.frozen)
        if not isinstance(policy, dict) or VALUE_HEAD not in policy:
            return policy
        return {name: part for name, part in policy.items() if name != VALUE_HEAD}


def reset(optimizer: optax.GradientTransformation) -> Callable[[TrainState], TrainState]:
    """Returns `state -> state` that begins the optimizer anew, in the same layout."""

    def again(state: TrainState) -> TrainState:
        where = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
        fresh = jax.jit(optimizer.init, out_shardings=where)(state.params)
        return replace(state, opt_state=fresh)

    return again


def join(trained: Params, frozen: Frozen) -> Params:
    """Merges two nested dicts without a leaf in common; `trained` alone where `frozen` is empty."""
    if not frozen:
        return trained
    both = {name: join(trained[name], frozen[name]) for name in trained.keys() & frozen.keys()}
    return {**frozen, **trained, **both}


class Hypers(NamedTuple):
    """Traced hyper-parameters: changing one of them does not recompile the update.

    Attributes:
      learning_rate: step size, scalar.
      temperature: the sampling temperature that log-probs are taken at, scalar.
      knobs: the knobs of the method by name (`eps_low`, `eps_high`, `beta`, ...), scalars.
      seed: of the random numbers that a method draws, uint32 scalar.
    """

    learning_rate: Array
    temperature: Array
    knobs: dict[str, Array]
    seed: Array


def hypers(
    learning_rate: float, temperature: float, knobs: Mapping[str, float], *, seed: int = 0
) -> Hypers:
    """Returns Hypers as scalar arrays, so that a Python number never becomes part of a program."""
    scalars = {name: jnp.float32(value) for name, value in knobs.items()}
    return Hypers(jnp.float32(learning_rate), jnp.float32(temperature), scalars, jnp.uint32(seed))


MomentStorage = Literal["full", "bfloat16", "factored"]
LEAST_FACTORED = 128
"""Rows and columns from which on a matrix has factored second moments: more than layers."""


def adam(
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    max_grad_norm: float,
    moments: MomentStorage = "full",
) -> optax.GradientTransformation:
    """Returns AdamW's direction, without the step size, which the update takes from `Hypers`.

    Args:
      b1: decay of the first moments.
      b2: decay of the second ones.
      eps: what is added to their root; with factored ones its square to the squares.
      weight_decay: share of a weight in the direction.
      max_grad_norm: the gradient is scaled down to it.
      moments: "full" keeps both moments in the parameters' dtype, "bfloat16" the first one in
        bfloat16. "factored" does so too, and keeps of the second moments of a matrix a row and a
        column (Shazeer & Stern 2018, arXiv:1804.04235, algorithm 2, with the constant decay of
        section 7.1); the first moments are then averages of gradients that these have scaled.
    """
    if moments == "factored":
        momentum = optax.ema(b1, debias=True, accumulator_dtype=jnp.bfloat16)
        scaled = optax.chain(factored_rms(b2=b2, eps=eps), momentum)
    else:
        dtype = jnp.bfloat16 if moments == "bfloat16" else None
        scaled = optax.scale_by_adam(b1=b1, b2=b2, eps=eps, mu_dtype=dtype)
    decayed = optax.add_decayed_weights(weight_decay)
    return optax.chain(clip_by_global_norm(max_grad_norm), scaled, decayed)


def factored_rms(*, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns g / sqrt(v), with v from averages of g^2 + eps^2 over rows and over columns."""

    def corrected(step: Any, decay: Any) -> Any:
        return decay * (1 - decay**step) / (1 - decay ** (step + 1))

    return optax.scale_by_factored_rms(
        decay_rate=b2,
        decay_rate_fn=corrected,
        epsilon=eps**2,
        min_dim_size_to_factor=LEAST_FACTORED,
    )


def is_large(params: optax.Params) -> bool:
    """Whether a second copy of the gradient is worth avoiding."""
    return sum(leaf.size for leaf in jax.tree.leaves(params)) >= LARGE


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Returns g if |g| < max_norm, else g / |g| * max_norm, without a second copy of g.

    Optax chooses between two arrays, and the compiler holds both. For large models the factor is
    chosen instead, equal but for the last bit: a product is cheap enough for the compiler to fuse
    it with what follows, while a quotient would be held beside g.
    """
    plain = optax.clip_by_global_norm(max_norm)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if not is_large(updates):
            return plain.update(updates, state, params)
        norm = optax.tree.norm(updates)
        within = norm < max_norm
        factor = jnp.where(within, 1.0, max_norm / norm)
        return jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), updates), state

    return optax.GradientTransformation(plain.init, update)


def init_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    *,
    region: Any = (),
    frozen: Frozen = (),
) -> TrainState:
    """Returns the state before the first update, with its trust region's initial state."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), region, frozen)


def guarded(
    state: TrainState,
    grads: Params,
    optimizer: optax.GradientTransformation,
    learning_rate: Array,
    is_finite: Array,
) -> tuple[TrainState, Array]:
    """Applies a gradient where all is finite; returns the state and whether it was applied.

    The state stays as it is unless `is_finite` holds and the new weights are finite.

    A small model's new weights are computed once, and selected over the old ones where they are
    finite. That holds both at once; a large model's are therefore computed once to be checked and
    once more in place, except where the moments are smaller than the weights (factored) and the
    second computation would hold more than the select does.
    """
    trained = replace(state, frozen=())  # `cond` would copy frozen parameters that pass through it

    def step(state: TrainState, grads: Params) -> TrainState:
        return apply_gradient(state, grads, optimizer, learning_rate)

    def keep(state: TrainState, _: Params) -> TrainState:
        return state

    def size(tree: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    stepped = step(trained, grads)
    taken = all_finite(stepped.params, also=is_finite)
    if is_large(state.params) and size(trained.opt_state) >= size(trained.params):
        after = jax.lax.cond(taken, step, keep, trained, grads)
    else:
        after = choose(taken, stepped, trained)
    return replace(after, frozen=state.frozen), taken


def apply_gradient(
    state: TrainState, grads: Params, optimizer: optax.GradientTransformation, learning_rate: Array
) -> TrainState:
    """Returns theta - learning_rate * the optimizer's direction, each parameter in its own dtype.

    The optimizer has no step size: `optax.scale_by_adam()`, where `optax.adam` would have its own.
    """
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam raises a float to an integer
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updates = jax.tree.map(lambda d: -learning_rate.astype(d.dtype) * d, updates)
    params = optax.apply_updates(state.params, updates)
    return replace(state, params=params, opt_state=opt_state, updates=state.updates + 1)
