"""Gradients group by group, by several estimators at once, and their bias and variance."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ogrpo.batch import Batch
from ogrpo.core import weights
from ogrpo.loop.parts import ScoreFn

WeightFn = Callable[[jax.Array, jax.Array], jax.Array]
ESTIMATORS: dict[str, WeightFn] = {
    "none": weights.unit_weight,
    "sequence": partial(weights.sequence_truncated_weight, cap=np.inf),
    "sequence, truncated at 2": partial(weights.sequence_truncated_weight, cap=2.0),
    "sequence, masked to 0.5–2": partial(weights.sequence_masked_weight, floor=0.5, cap=2.0),
    "sequence, self-normalised": weights.group_normalized_weight,
    "token": weights.plain_weight,
    "token, truncated at 2": partial(weights.truncated_weight, cap=2.0),
    "token, clipped to 0.8–1.2": partial(weights.truncated_weight, cap=1.2, floor=0.8),
}
"""Weights of A_i grad log pi, A_i the lead over the others of the group, which no weight touches:
with the whole ratio of the sequence the estimate is unbiased (`leave_one_out_unbiased`)."""

PullFn = Callable[[Any, Batch[jax.Array], jax.Array], jax.Array]


def make_pull(score: ScoreFn, temperature: float) -> PullFn:
    """`(params, a group, factors [E, G, T]) -> gradients of sums of factor * log pi, [E, P]`."""

    @jax.jit
    def pull(params: Any, group: Batch[jax.Array], factors: jax.Array) -> jax.Array:
        hot = jnp.float32(temperature)
        _, back = jax.vjp(lambda p: score(p, group, hot), params)
        return jax.vmap(lambda one: ravel_pytree(back(one[None])[0])[0])(factors)

    return pull


def moments(gradients: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
    """Returns squared bias without the noise of either side, and a group's variance, [E] each.

    The prompts are drawn too: the variance is that of a group of any prompt. The bias is taken
    prompt by prompt, where what differs between prompts cancels; its square may come out below 0.

    Args:
      gradients: of M groups by E estimators, [M, E, P].
      truth: of their prompts, [M, P].
    """
    m = len(gradients)

    def split(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        squares = jnp.einsum("mep,mep->e", values, values)
        length = jnp.sum(values.sum(0) ** 2, axis=-1) / m
        variance = (squares - length) / (m - 1)
        return length / m - variance / m, variance

    bias2, noise = split(gradients - truth[:, None])
    _, variance = split(gradients)
    return {"bias2": bias2, "bias2/noise": noise / m, "variance": variance}
