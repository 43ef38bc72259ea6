"""Log-probabilities of tokens from hidden states, the widest part of the computation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.batch import PolicyOutput

HeadFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], PolicyOutput[jax.Array]]
"""`(hidden, embedding, token_ids, temperature) -> log-probs and entropy`: of [M, d], [V, d], [M, A]
and a scalar, [M, A] and [M]."""


def logits(hidden: jax.Array, embedding: jax.Array) -> jax.Array:
    """Returns z = E h in float32, float64 of float64: [M, d] and [V, d] to [M, V]."""
    wide = jnp.float64 if hidden.dtype == jnp.float64 else jnp.float32
    return jnp.einsum("md,vd->mv", hidden, embedding, preferred_element_type=wide)


def log_softmax(scores: jax.Array, temperature: jax.Array) -> jax.Array:
    """Returns log pi = log softmax(z / temperature) over the last axis, for z [..., V]."""
    return jax.nn.log_softmax(scores / temperature, axis=-1)


def token_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    max_logits: int = 1 << 27,
) -> PolicyOutput[jax.Array]:
    """Returns log-probs of A tokens under each of M next-token distributions, and their entropy.

    log_probs[m, a] = log_softmax(E h_m / temperature)[token_ids[m, a]], entropy[m] = -sum p log p,
    in float32. Above `max_logits` logits the M rows are taken in chunks that fit, each recomputed
    in the backward pass, so that [M, V] is never held whole.

    Args:
      hidden: [M, d].
      embedding: [V, d].
      token_ids: int [M, A].
      temperature: float32 scalar, > 0.
      max_logits: the most float32 logits alive at once (the default is 512 MiB).

    Returns:
      float32 [M, A] and [M].
    """
    rows = max(1, max_logits // embedding.shape[0])
    if hidden.shape[0] <= rows:
        return _row_log_probs(hidden, embedding, token_ids, temperature)

    @jax.checkpoint
    def row(inputs: tuple[jax.Array, jax.Array]) -> PolicyOutput[jax.Array]:
        state, ids = inputs
        out = _row_log_probs(state[None], embedding, ids[None], temperature)
        return PolicyOutput(log_probs=out.log_probs[0], entropy=out.entropy[0])

    return jax.lax.map(row, (hidden, token_ids), batch_size=rows)


def _row_log_probs(
    hidden: jax.Array, embedding: jax.Array, token_ids: jax.Array, temperature: jax.Array
) -> PolicyOutput[jax.Array]:
    log_probs = log_softmax(logits(hidden, embedding), temperature)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    picked = jnp.take_along_axis(log_probs, token_ids, axis=-1)
    return PolicyOutput(log_probs=picked, entropy=entropy)
