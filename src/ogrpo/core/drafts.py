"""Old completions as drafts for the policy: what of them stays, and what follows what does not.

    p = policy, q = the policy that drew the draft x_1 ... x_T
    keep x_t while u_t < p(x_t)/q(x_t)
    at the first that is rejected draw from (p - q)+ / sum (p - q)+

A token so drawn has the law p (theorem `draft_law`): q(x) min(1, p(x)/q(x)) = min(p(x), q(x)), and
a rejection, of chance sum (p - q)+ = TV(p, q), adds what p has beyond. To draw from p itself after
a rejection is biased (theorem `redraw_is_biased`): .75 for .5.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_axes, check_masked


def kept_tokens(
    log_probs: jax.Array, draft_log_probs: jax.Array, uniforms: jax.Array, mask: jax.Array
) -> jax.Array:
    """Leading draft tokens that stay: those before the first with u_t >= p(x_t)/q(x_t).

    Source: speculative decoding (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318). Support: none; where p(x) = 0 nothing stays, and where q(x) = 0 < p(x) the
    token does, which a draft of q never has. Bias: none, given drafts that q drew independently of
    u and of p: a policy that was trained on the draft, or a draft that was chosen by its reward,
    breaks that. Uniforms that are multiples of 2^-k keep a token with a chance up to 2^-k too high.

    Args:
      log_probs: [..., T] log p(x_t | x_<t), in nats.
      draft_log_probs: [..., T] log q(x_t | x_<t).
      uniforms: [..., T] on [0, 1), independent.
      mask: [..., T] bool, True on the draft's tokens, from the left.

    Returns:
      int32 [...]. A NaN log-prob rejects its token.

    Raises:
      ValueError: shapes differ, the mask is not bool, or log-probs are not floats.

    Example:
      >>> mask = jnp.array([True, True, True])
      >>> kept_tokens(jnp.log(jnp.array([0.9, 0.2, 0.5])), jnp.log(jnp.array([0.5, 0.5, 0.5])),
      ...     jnp.array([0.99, 0.41, 0.0]), mask)
      Array(1, dtype=int32)
    """
    check_masked("T", mask, log_probs=log_probs, draft_log_probs=draft_log_probs, uniforms=uniforms)
    top, bottom = as_floats(log_probs=log_probs, draft_log_probs=draft_log_probs)
    stays = mask & (uniforms < jnp.exp(jnp.minimum(top - bottom, 0)))  # NaN, of 0/0 too, is False
    return jnp.sum(jnp.cumprod(stays, axis=-1, dtype=jnp.int32), axis=-1, dtype=jnp.int32)


def residual_log_probs(log_probs: jax.Array, draft_log_probs: jax.Array) -> jax.Array:
    """Law of the token after a rejection: log r(x), r = (p - q)+ / sum (p - q)+.

    Source: speculative decoding (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318). Support: none. Bias: none. The difference of nearly equal probabilities
    loses digits as 1/TV(p, q), and a rejection has the chance TV: the law of the tokens that come
    out is wrong by the order of one rounding, whatever TV is. Where no p(x) is above q(x), as at
    p = q, nothing is rejected but by rounding, and the law is p. With log q = -inf for all tokens,
    where a draft has ended, it is p as well.

    Args:
      log_probs: [..., V] log p, normalised; -inf where p is 0.
      draft_log_probs: [..., V] log q.

    Returns:
      [..., V], normalised, -inf where p <= q.

    Raises:
      ValueError: shapes differ, or log-probs are not floats.

    Example:
      >>> p, q = jnp.array([0.5, 0.5]), jnp.array([1.0, 0.0])
      >>> jnp.exp(residual_log_probs(jnp.log(p), jnp.log(q)))
      Array([0., 1.], dtype=float32)
    """
    check_axes("V", log_probs=log_probs, draft_log_probs=draft_log_probs)
    top, bottom = as_floats(log_probs=log_probs, draft_log_probs=draft_log_probs)
    above = top > bottom
    gap = jnp.where(above, bottom - jnp.where(above, top, 0), -1)  # log q - log p < 0
    excess = jnp.where(above, top + jnp.log(-jnp.expm1(gap)), -jnp.inf)
    law = jnp.where(jnp.any(above, axis=-1, keepdims=True), excess, top)
    return law - jax.nn.logsumexp(law, axis=-1, keepdims=True)
