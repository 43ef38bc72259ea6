"""Log-probs without logits in plain XLA: the version for CPU, and for any device."""

import jax
import jax.numpy as jnp

from ogrpo.batch import PolicyOutput
from ogrpo.kernels.log_probs.sweep import Known, Slice, Sums, SweepPlan, swept_log_probs

WIDTH = 1024
KEPT_BYTES = 1 << 29
CPU_ROWS = 2048
"""Rows at a time there: a slice of them stays in the cache between the passes over it."""


def chunked_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    width: int = WIDTH,
    kept_bytes: int = KEPT_BYTES,
    axis_name: str | None = None,
    block: int | None = None,
) -> PolicyOutput[jax.Array]:
    """Log-probs of A tokens under each of M next-token distributions, with their entropy.

    log_probs[m, a] = log_softmax(E h_m / temperature)[token_ids[m, a]], entropy[m] = -sum p log p,
    accumulated in float32, a slice of `width` tokens of the vocabulary at a time. The backward pass
    has the logits of as many slices as `kept_bytes` hold, and computes those of the others again,
    one matrix product more: no [M, V] in either pass, but where it fits.
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
      width: tokens of the vocabulary at a time; float32 [M, width], or of one block of rows, is the
        memory needed.
      kept_bytes: for float32 logits from the forward to the backward pass; where no gradient is
        asked for, nothing is kept.
      axis_name: mesh axis of the vocabulary, or None where each device has all of it.
      block: rows at a time; by default `CPU_ROWS` on a CPU, and all elsewhere.

    Returns:
      float32 [M, A] and [M].

    Raises:
      ValueError: the embedding is not cut over axis_name.
    """
    kept = kept_bytes // (4 * width * max(hidden.shape[0], 1))
    block = CPU_ROWS if block is None and jax.default_backend() == "cpu" else block
    plan = SweepPlan(_sums, _scores_grad, width, width, axis_name, _scores, kept, block)
    return swept_log_probs(plan, hidden, embedding, token_ids, temperature)


def _scores(here: Slice) -> jax.Array:
    z = jnp.einsum("md,vd->mv", here.hidden, here.rows, preferred_element_type=jnp.float32)
    return z / here.temperature


def _sums(here: Slice, scores: jax.Array | None) -> Sums:
    z = _scores(here) if scores is None else scores
    peak = jnp.max(z, axis=-1)
    shifted = z - peak[:, None]
    weight = jnp.exp(shifted)
    inside = (here.token_ids >= 0) & (here.token_ids < here.rows.shape[0])
    logits = jnp.take_along_axis(z, jnp.where(inside, here.token_ids, 0), axis=-1)
    logits = jnp.where(inside, logits, -jnp.inf)
    return Sums(peak, jnp.sum(weight, axis=-1), jnp.sum(weight * shifted, axis=-1), logits)


def _scores_grad(here: Slice, known: Known, scores: jax.Array | None) -> jax.Array:
    z = _scores(here) if scores is None else scores
    log_p = z - known.peak[:, None] - known.log_mass[:, None]
    pull = known.d_entropy[:, None] * (log_p + known.entropy[:, None])
    through_mass = -jnp.exp(log_p) * (jnp.sum(known.d_log_probs, axis=-1)[:, None] + pull)
    # Out of bounds is dropped, but -1 would be the last column.
    column = jnp.where(here.token_ids < 0, here.rows.shape[0], here.token_ids)
    row = jnp.arange(here.hidden.shape[0])[:, None]
    direct = known.d_log_probs / here.temperature
    d_scores = (through_mass / here.temperature).at[row, column].add(direct, mode="drop")
    return d_scores.astype(here.hidden.dtype)
