"""Log-probs without logits in plain XLA: the version for CPU, and for any device."""

import jax
import jax.numpy as jnp

from ogrpo.kernels.log_probs.sweep import Known, Plan, Sums, swept_log_probs
from ogrpo.policy.head import HeadOutput

WIDTH = 1024


def chunked_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    width: int = WIDTH,
    axis_name: str | None = None,
) -> HeadOutput:
    """Log-probs of A tokens under each of M next-token distributions, with their entropy.

    log_probs[m, a] = log_softmax(E h_m / temperature)[token_ids[m, a]], entropy[m] = -sum p log p,
    accumulated in float32, a slice of `width` tokens of the vocabulary at a time. The backward pass
    computes each slice's logits again: one matrix product more, and no [M, V] in either pass.
    Differentiable, once and in reverse, with respect to hidden, embedding and temperature, through
    the log-probs and the entropy alike (formulas in `sweep`).

    With bfloat16 inputs the gradient of a slice's logits is rounded to bfloat16 before its two
    products, as everything that enters a bfloat16 product is; these accumulate in float32.

    Inside `jax.shard_map`, `axis_name` names the mesh axis that the vocabulary is cut over: each
    device passes its own rows of the embedding, in order and equally many, with the whole hidden
    states and global token ids. Rows of hidden may vary over other axes.

    Args:
      hidden: [M, d].
      embedding: [V, d] of hidden's dtype: the head's own, or the tied input embedding.
      token_ids: int [M, A]; a token outside of the vocabulary has log-prob -inf.
      temperature: scalar > 0; may be traced.
      width: tokens of the vocabulary at a time; [M, width] float32 is the memory needed.
      axis_name: mesh axis of the vocabulary, or None where each device has all of it.

    Returns:
      float32 [M, A] and [M].

    Raises:
      ValueError: the embedding is not cut over axis_name.
    """
    plan = Plan(_sums, _scores_grad, width, width, axis_name)
    return swept_log_probs(plan, hidden, embedding, token_ids, temperature)


def _scores(hidden: jax.Array, rows: jax.Array, temperature: jax.Array) -> jax.Array:
    z = jnp.einsum("md,vd->mv", hidden, rows, preferred_element_type=jnp.float32)
    return z / temperature


def _sums(hidden: jax.Array, rows: jax.Array, token_ids: jax.Array, temperature: jax.Array) -> Sums:
    z = _scores(hidden, rows, temperature)
    peak = jnp.max(z, axis=-1)
    shifted = z - peak[:, None]
    weight = jnp.exp(shifted)
    inside = (token_ids >= 0) & (token_ids < rows.shape[0])
    found = jnp.take_along_axis(z, jnp.where(inside, token_ids, 0), axis=-1)
    asked = jnp.where(inside, found, -jnp.inf)
    return Sums(peak, jnp.sum(weight, axis=-1), jnp.sum(weight * shifted, axis=-1), asked)


def _scores_grad(
    hidden: jax.Array,
    rows: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    known: Known,
) -> jax.Array:
    z = _scores(hidden, rows, temperature)
    log_p = z - known.peak[:, None] - known.log_mass[:, None]
    pull = known.d_entropy[:, None] * (log_p + known.entropy[:, None])
    through_mass = -jnp.exp(log_p) * (jnp.sum(known.d_log_probs, axis=-1)[:, None] + pull)
    # Out of bounds is dropped, but -1 would be the last column.
    column = jnp.where(token_ids < 0, rows.shape[0], token_ids)
    row = jnp.arange(hidden.shape[0])[:, None]
    d_scores = through_mass.at[row, column].add(known.d_log_probs, mode="drop")
    return (d_scores / temperature).astype(hidden.dtype)
