"""Inputs of the log-probs kernels, their loss, and float64's answer."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.kernels.log_probs import reference_log_probs
from tests.kernels.attention import cases as attention

M, A, V, D = 8, 3, 52, 12


class Case(NamedTuple):
    hidden: Any
    embedding: Any
    token_ids: Any
    temperature: Any
    d_log_probs: Any
    d_entropy: Any


def draw(seed: int, temperature: float = 0.7, scale: float = 1.0, dtype: Any = jnp.float32) -> Case:
    """Cotangents are 0 on masked rows; one row asks the same token twice, one the outermost."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, V, (M, A)).astype(np.int32)
    ids[0] = ids[0, 0]
    ids[1] = (0, V - 1, V // 2)
    mask = (rng.random(M) < 0.8).astype(np.float32)
    return Case(
        jnp.asarray(scale * rng.normal(size=(M, D)), dtype),
        jnp.asarray(rng.normal(size=(V, D)), dtype),
        jnp.asarray(ids),
        jnp.float32(temperature),
        jnp.asarray(rng.normal(size=(M, A)) * mask[:, None], jnp.float32),
        jnp.asarray(rng.normal(size=M) * mask, jnp.float32),
    )


def values_and_gradients(kernel: Any, case: Case) -> Any:
    """Outputs, and gradients with respect to hidden, embedding and temperature."""

    def loss(hidden, embedding, temperature):
        out = kernel(hidden, embedding, case.token_ids, temperature)
        pulled = jnp.sum(out.log_probs * case.d_log_probs) + jnp.sum(out.entropy * case.d_entropy)
        return pulled, out

    inputs = case.hidden, case.embedding, case.temperature
    grads, out = jax.grad(loss, (0, 1, 2), has_aux=True)(*inputs)
    return (out.log_probs, out.entropy, *grads)


@cache
def compiled(kernel: Any) -> Any:
    return jax.jit(lambda case: values_and_gradients(kernel, case))


def in_float64(case: Case) -> Any:
    """The oracle's answer, by automatic differentiation in float64, to the same inputs."""
    with jax.enable_x64(True):
        wide = [x if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float64) for x in case]
        return jax.tree.map(np.asarray, compiled(reference_log_probs)(Case(*wide)))


def errors(kernel: Any, case: Case) -> list[float]:
    """Largest error of each output and gradient against float64, as attention's are measured."""
    return attention.errors(compiled(kernel)(case), in_float64(case))
