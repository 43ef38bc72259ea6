"""The oracle: all logits at once, gradients by automatic differentiation."""

import jax
import jax.numpy as jnp

from ogrpo.batch import PolicyOutput


def reference_log_probs(
    hidden: jax.Array, embedding: jax.Array, token_ids: jax.Array, temperature: jax.Array
) -> PolicyOutput[jax.Array]:
    """log pi = log softmax(E h / temperature), at the asked tokens, and -sum pi log pi.

    Holds [M, V] in the forward and in the backward pass. Accumulates in float32, in float64 for
    float64 inputs, which makes it the yardstick of errors too.

    Args:
      hidden: [M, d].
      embedding: [V, d].
      token_ids: int [M, A], in [0, V).
      temperature: scalar of the accumulator's dtype, > 0.

    Returns:
      [M, A] and [M].
    """
    wide = jnp.float64 if hidden.dtype == jnp.float64 else jnp.float32
    scores = jnp.einsum("md,vd->mv", hidden, embedding, preferred_element_type=wide)
    log_probs = jax.nn.log_softmax(scores / temperature, axis=-1)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    of_tokens = jnp.take_along_axis(log_probs, token_ids, axis=-1)
    return PolicyOutput(log_probs=of_tokens, entropy=entropy)
