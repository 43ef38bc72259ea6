"""How noisy an update's gradient is, from the gradients of its groups."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ogrpo.batch import Batch
from ogrpo.learner.metrics import Metrics
from ogrpo.learner.state import Hypers, Params, TrainState
from ogrpo.learner.update import Recipe, Weighed, gradient, weigh

NoiseFn = Callable[[TrainState, Batch[Array], Hypers], Metrics]


def gradient_spread(
    state: TrainState, batch: Batch[Array], hypers: Hypers, recipe: Recipe
) -> Metrics:
    """Estimates the trace of the covariance of an update's gradient, were groups drawn anew.

    With g_k the gradient of group k's loss total and c the batch's count, the update's gradient is
    sum_k g_k / c, and N/(N - 1) (sum_k |g_k|^2 - |sum_k g_k|^2 / N) / c^2 estimates the trace of
    its covariance: unbiased for independent groups, c taken as fixed.

    Returns:
      grad_variance: that estimate. grad_snr: squared norm of the gradient, less its own noise, over
      that estimate; below 0 where the gradient cannot be told from noise.

    Raises:
      ValueError: fewer than two groups.
    """
    n = batch.rewards.shape[0]
    if n < 2:
        raise ValueError(f"a variance between groups needs at least 2 of them, not {n}")
    single = recipe._replace(microbatches=1, skip_zero_variance=False, packed=False)
    weighed = weigh(batch._replace(packing=None), single, hypers)

    def add(sums: tuple[Params, Array, Array], group: Weighed) -> tuple[tuple, None]:
        total, squares, count = sums
        one = jax.tree.map(lambda x: x[None], group)
        arguments = (state.params, one, hypers, single, state.region)
        grads, evidence = gradient(*arguments, frozen=state.frozen)
        total = jax.tree.map(jnp.add, total, grads)
        return (total, squares + squared_norm(grads), count + evidence.total.count), None

    nothing = jax.tree.map(jnp.zeros_like, state.params)
    zero = jnp.zeros((), jnp.float32)
    (total, squares, count), _ = jax.lax.scan(add, (nothing, zero, zero), weighed)
    count = jnp.maximum(count, 1.0)
    length = squared_norm(total)
    variance = (squares - length / n) * n / (n - 1) / count**2
    signal = length / count**2 - variance
    return {
        "grad_variance": variance,
        "grad_snr": signal / jnp.where(variance == 0, 1, variance),
    }


def squared_norm(tree: Params) -> Array:
    """Sum of squares of all leaves, in float32."""
    return jnp.square(optax.tree.norm(jax.tree.map(lambda x: x.astype(jnp.float32), tree)))


def make_noise(recipe: Recipe) -> NoiseFn:
    """Returns the jitted `(state, batch, hypers) -> metrics`."""
    return jax.jit(partial(gradient_spread, recipe=recipe))
