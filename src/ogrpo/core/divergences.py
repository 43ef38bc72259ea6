"""Divergences: per-token estimators `(log_probs, ref_log_probs) -> [..., T]`, and exact ones.

x = log pi_ref - log pi at a token drawn from pi; Schulman, "Approximating KL divergence" (2020).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_axes
from ogrpo.core.ratios import MAX_LOG_RATIO, exp_ratio

KlFn = Callable[[jax.Array, jax.Array], jax.Array]


def k1(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), first estimator: -x.

    Unbiased under y ~ pi, of either sign. As a loss with the samples fixed its expected gradient
    is 0: it regularises nothing.

    Args:
      log_probs: [..., T].
      ref_log_probs: [..., T].

    Returns:
      [..., T] in nats.
    """
    top, bottom = as_floats(log_probs=log_probs, ref_log_probs=ref_log_probs)
    return top - bottom


def k2(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), second estimator: x^2 / 2.

    Biased, >= 0. As a loss with the samples fixed, its gradient is unbiased for grad KL(pi||ref).

    Args and Returns: as `k1`.
    """
    return k1(log_probs, ref_log_probs) ** 2 / 2


def k3(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """KL(pi||ref), third estimator: exp(x) - 1 - x.

    Source: GRPO (Shao et al. 2024, arXiv:2402.03300), eq. 4. Unbiased under y ~ pi where ref << pi,
    >= 0; biased on unweighted samples of another policy. As a loss with the samples fixed, its
    gradient is that of KL(ref||pi), the other direction. Constant beyond x = 60.

    Args and Returns: as `k1`.

    Example:
      >>> float(k3(jnp.array([-1.0]), jnp.array([-2.0]))[0])  # e^-1
      0.3678794503211975
    """
    x = jnp.minimum(-k1(log_probs, ref_log_probs), MAX_LOG_RATIO)
    return jnp.expm1(x) - x


def straight_through_k3(log_probs: jax.Array, ref_log_probs: jax.Array) -> jax.Array:
    """The value of k3 with the gradient of k2, which on samples of pi is that of KL(pi||ref).

    Source: Schulman (2020) for the estimators; verl's `k3+`. [..., T] -> [..., T].
    """
    low = k2(log_probs, ref_log_probs)
    return low + jax.lax.stop_gradient(k3(log_probs, ref_log_probs) - low)


def importance_kl(
    log_probs: jax.Array, ref_log_probs: jax.Array, *, kl_fn: KlFn, log_ratio: jax.Array
) -> jax.Array:
    """rho k(log pi, log ref): KL(pi||ref) from samples of mu, the gradient through rho as well.

    Source: unbiased KL (DeepSeek-V3.2, 2025, arXiv:2512.02556). Where pi << mu, at sequence level
    and with k1, or k3 if ref << pi, it is unbiased in value and gradient, grad KL(pi||ref).

    Args:
      log_probs: [..., T].
      ref_log_probs: [..., T].
      kl_fn: `k1`, `k2` or `k3`.
      log_ratio: [..., T] log pi - log mu, carrying its gradient.

    Returns:
      [..., T] in nats.
    """
    return exp_ratio(log_ratio) * kl_fn(log_probs, ref_log_probs)


def weighted_kl(
    log_probs: jax.Array, ref_log_probs: jax.Array, *, kl_fn: KlFn, log_ratio: jax.Array
) -> jax.Array:
    """sg(rho) k(log pi, log ref): the value of `importance_kl`, the gradient of k alone.

    Its gradient, at sequence level, is that of k under y ~ pi: grad KL(pi||ref) for k2,
    grad KL(ref||pi) for k3, 0 for k1. Args and Returns: as `importance_kl`.
    """
    weight = jax.lax.stop_gradient(exp_ratio(log_ratio))
    return weight * kl_fn(log_probs, ref_log_probs)


def behavior_kl(log_ratio: jax.Array) -> jax.Array:
    """rho D - (rho - 1), D = log rho: KL(pi||mu) from samples of mu itself.

    Unbiased where pi << mu, and >= 0 for every sample; constant beyond D = 60. Of a token: KL of
    its two laws at prefixes that mu drew, where KL of whole completions has those of pi.
    [..., T] -> [..., T] in nats.
    """
    delta = jnp.minimum(log_ratio, MAX_LOG_RATIO)
    ratio = jnp.exp(delta)
    return ratio * jnp.where(ratio == 0, 0, delta) - jnp.expm1(delta)


def binary_tv(log_probs: jax.Array, behavior_log_probs: jax.Array) -> jax.Array:
    """|pi - mu| of the drawn token: TV of "this token or another".

    Source: DPPO (Qi et al. 2026, arXiv:2602.04879). A lower bound of the token distributions' TV.
    [..., T] -> [..., T].
    """
    new, old = as_floats(log_probs=log_probs, behavior_log_probs=behavior_log_probs)
    return jnp.abs(jnp.exp(new) - jnp.exp(old))


def binary_kl(log_probs: jax.Array, behavior_log_probs: jax.Array) -> jax.Array:
    """KL(mu||pi) of "this token or another", from the drawn token's log-probs.

    Source: DPPO (Qi et al. 2026, arXiv:2602.04879). A lower bound of KL(mu||pi), by data
    processing. [..., T] -> [..., T]; inf where pi leaves mass to neither side that mu uses.
    """
    new, old = as_floats(log_probs=log_probs, behavior_log_probs=behavior_log_probs)
    rest_new, rest_old = (jnp.log(-jnp.expm1(jnp.minimum(x, 0))) for x in (new, old))
    return _plogp(old, new) + _plogp(rest_old, rest_new)


def entropy(logits: jax.Array) -> jax.Array:
    """H(p) = -sum_v p log p in nats, from logits. [..., V] -> [...]."""
    check_axes("V", logits=logits)
    log_p = jax.nn.log_softmax(as_floats(logits=logits)[0], axis=-1)
    return -jnp.sum(_plogp(log_p, jnp.zeros_like(log_p)), axis=-1)


def _plogp(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    empty = jnp.isneginf(log_p)
    difference = jnp.where(empty, 0, log_p) - jnp.where(empty, 0, log_q)
    return jnp.exp(log_p) * difference
