"""Exact ratios under top-p, top-k and min-p: both policies over the set of tokens that was kept.

A sampler that cuts its distribution draws from mu_K(y) = mu(y) / mu(K), K the tokens that it kept
at a prefix. E_{mu_K}[pi / mu_K] = pi(K) < 1: the ratio is biased, and no weight mends it. Over the
same set, pi_K = pi / pi(K), E_{mu_K}[pi_K / mu_K] = 1, and the gradient is that of the cut policy.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_mask, check_nonnegative


def kept_log_probs(logits: jax.Array, ids: jax.Array, kept: jax.Array) -> jax.Array:
    """log pi_K(y) = l_y - log sum_{v in K} exp(l_v), the log-probs of a policy cut to a set.

    Source: the sampling mask of DeepSeek-V3.2 (2025, arXiv:2512.02556), section 3.3.
    Support: y in K; elsewhere the log-prob is -inf.

    Args:
      logits: [..., T, V], differentiated.
      ids: [..., T] the tokens.
      kept: [..., T, V] bool, what the sampler kept at each place.

    Returns:
      [..., T].

    Example:
      >>> kept = jnp.array([[True, True, False]])
      >>> kept_log_probs(jnp.zeros((1, 3)), jnp.array([0]), kept)
      Array([-0.6931472], dtype=float32)
    """
    if logits.shape != kept.shape or logits.shape[:-1] != ids.shape:
        raise ValueError(
            f"logits {list(logits.shape)} and kept {list(kept.shape)} are [..., T, V], ids"
            f" {list(ids.shape)} are [..., T]"
        )
    check_mask(kept, "kept")
    (values,) = as_floats(logits=logits)
    drawn = jnp.take_along_axis(values, ids[..., None], axis=-1)[..., 0]
    inside = jnp.take_along_axis(kept, ids[..., None], axis=-1)[..., 0]
    total = jax.nn.logsumexp(values, axis=-1, where=kept)
    return jnp.where(inside, drawn - total, -jnp.inf)


def top_k_set(logits: jax.Array, *, k: int) -> jax.Array:
    """Returns the k largest logits' places; of equal ones at the edge, all. [..., V] -> bool."""
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must be from 1 to the vocabulary's {logits.shape[-1]}, got {k}")
    edge = jax.lax.top_k(logits, k)[0][..., -1:]
    return logits >= edge


def top_p_set(logits: jax.Array, *, top_p: float) -> jax.Array:
    """Returns the fewest likeliest tokens whose mass is at least top_p. [..., V] -> bool.

    Source: nucleus sampling (Holtzman et al. 2020).
    """
    check_nonnegative(top_p=top_p)
    probs = jax.nn.softmax(logits, axis=-1)
    order = jnp.argsort(-probs, axis=-1)
    ranked = jnp.take_along_axis(probs, order, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked
    return jnp.take_along_axis(before < top_p, jnp.argsort(order, axis=-1), axis=-1)


def min_p_set(logits: jax.Array, *, min_p: float) -> jax.Array:
    """Returns the tokens at least min_p times as likely as the likeliest. [..., V] -> bool.

    Source: min-p sampling (Nguyen et al. 2024, arXiv:2407.01082).
    """
    check_nonnegative(min_p=min_p)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return log_probs >= jnp.max(log_probs, axis=-1, keepdims=True) + jnp.log(jnp.asarray(min_p))


def ratio_bias(log_probs: jax.Array, kept: jax.Array) -> jax.Array:
    """E_{mu_K}[pi / mu_K] - 1 = pi(K) - 1, by how much ratios of whole policies fall short.

    Args:
      log_probs: [..., V] log pi.
      kept: [..., V] bool, the set that the sampler kept.

    Returns:
      [...], at most 0.
    """
    check_mask(kept, "kept")
    return jnp.sum(jnp.where(kept, jnp.exp(log_probs), 0), axis=-1) - 1
