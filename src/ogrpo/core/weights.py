"""Detached weights `(log_ratio, mask) -> weight`, and how many samples they leave.

The log-ratio of a weight is proximal over behaviour: it corrects for staleness and for the mismatch
of sampler and trainer. Use one only with a surrogate whose ratio starts at the proximal policy, or
the same correction is applied twice.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_axes, check_mask, check_masked, check_nonnegative
from ogrpo.core.masked import masked_count, masked_sum
from ogrpo.core.ratios import exp_ratio


def unit_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """w = 1, no correction. [..., T] -> [..., T]. Biased whenever the two policies differ."""
    check_masked("T", mask, log_ratio=log_ratio)
    return jnp.ones_like(log_ratio)


def plain_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """Importance weight: w = rho = exp(D).

    Unbiased, E_mu[rho f] = E_pi[f], where pi << mu; n Var = E_mu[rho^2 f^2] - J^2.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool.

    Returns:
      [..., T] detached.
    """
    check_masked("T", mask, log_ratio=log_ratio)
    return jax.lax.stop_gradient(exp_ratio(log_ratio))


def truncated_weight(
    log_ratio: jax.Array, mask: jax.Array, *, cap: Scalar, floor: Scalar = 0.0
) -> jax.Array:
    """Truncated importance weight: w = clip(rho, floor, cap).

    Source: Ionides (2008); TIS (Yao et al. 2025) with cap 2.
    Bias: E_mu[(floor - rho)_+ f] - E_mu[(rho - cap)_+ f]; never upward for f >= 0 and floor = 0.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool.
      cap: largest weight.
      floor: smallest weight.

    Returns:
      [..., T] detached.

    Example:
      >>> truncated_weight(jnp.log(jnp.array([0.5, 8.0])), jnp.array([True, True]), cap=2.0)
      Array([0.5, 2. ], dtype=float32)
    """
    check_nonnegative(cap=cap, floor=floor)
    return jnp.clip(plain_weight(log_ratio, mask), floor, cap)


def masked_weight(
    log_ratio: jax.Array, mask: jax.Array, *, cap: Scalar, floor: Scalar = 0.0
) -> jax.Array:
    """Masked importance weight: w = rho where floor <= rho <= cap, else 0.

    Source: IcePop (Ling team 2025).
    Bias: -E_mu[rho f; rho outside], which for f >= 0 exceeds that of `truncated_weight` above.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool.
      cap: largest ratio kept.
      floor: smallest ratio kept.

    Returns:
      [..., T] detached.
    """
    check_nonnegative(cap=cap, floor=floor)
    ratio = plain_weight(log_ratio, mask)
    return jnp.where((ratio < floor) | (ratio > cap), 0, ratio)


def sequence_truncated_weight(log_ratio: jax.Array, mask: jax.Array, *, cap: Scalar) -> jax.Array:
    """Truncated sequence weight at every token: w = min(prod_t rho_t, cap).

    Source: sequence-level TIS (Ionides 2008 on trajectories). Bias: -E_mu[(rho - cap)_+ f].
    Args and Returns: as `truncated_weight`.
    """
    return truncated_weight(_sequence(log_ratio, mask), mask, cap=cap)


def sequence_masked_weight(
    log_ratio: jax.Array, mask: jax.Array, *, cap: Scalar, floor: Scalar = 0.0
) -> jax.Array:
    """Masked sequence weight at every token: w = prod_t rho_t if within [floor, cap], else 0.

    Source: masked importance sampling at sequence level, TRL's default with cap 3.
    Args and Returns: as `masked_weight`.
    """
    return masked_weight(_sequence(log_ratio, mask), mask, cap=cap, floor=floor)


def group_normalized_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """Self-normalised in the group, at every token: w_i = G rho_i / sum_j rho_j, rho by sequence.

    Source: self-normalised importance sampling (Hesterberg 1995). Bias: O(1/G); within range, and
    invariant to any factor common to the group.

    Args:
      log_ratio: [..., G, T].
      mask: [..., G, T] bool; a completion without a token is not in the group.

    Returns:
      [..., G, T] detached, of mean 1 over the completions of a group.
    """
    check_axes("G, T", log_ratio=log_ratio, mask=mask)
    return _normalized(log_ratio, mask, (-2,))


def batch_normalized_weight(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    """Self-normalised in the batch: as `group_normalized_weight`, over every leading axis.

    Bias: O(1/n) for n sequences. Depends on what is in the batch: a microbatch weighs differently.
    Args and Returns: as `group_normalized_weight`, with [..., T].
    """
    check_axes("T", log_ratio=log_ratio, mask=mask)
    return _normalized(log_ratio, mask, tuple(range(jnp.ndim(log_ratio) - 1)))


def ess(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Kish's effective sample size: (sum w)^2 / sum w^2, over the last axis.

    Between 1 and the number kept; scale-free; n / (1 + CV^2). Near n while a run collapses: it says
    how uneven the weights are, not whether they are right.

    Args:
      log_weights: [..., n] unnormalised. +inf entries share the whole weight between them.
      mask: [..., n] bool.

    Returns:
      [...]; 0 where nothing is kept or every weight is 0.

    Example:
      >>> ess(jnp.log(jnp.array([1.0, 1.0, 2.0])), jnp.array([True, True, False]))
      Array(2., dtype=float32)
    """
    check_masked("n", mask, log_weights=log_weights)
    weights = _relative(jnp.where(mask, log_weights, -jnp.inf), -1)
    squares = jnp.sum(weights**2, axis=-1)
    return jnp.sum(weights, axis=-1) ** 2 / jnp.where(squares == 0, 1, squares)


def ess_fraction(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Effective sample size over the number kept, in [0, 1]. [..., n] -> [...]."""
    count = masked_count(mask, log_weights.dtype)[..., 0]
    return ess(log_weights, mask) / jnp.maximum(count, 1)


def chi_square(log_weights: jax.Array, mask: jax.Array) -> jax.Array:
    """Plug-in chi-square: mean rho^2 - 1, over the last axis.

    Unbiased for chi^2(pi||mu) on samples of mu where pi << mu; heavy-tailed. In n samples it is
    seldom far above n, so large true values go unseen. Source: Metelli et al. (2018,
    arXiv:1809.06098); what it says of an error: `bounds.effective_samples`.

    Args:
      log_weights: [..., n] log rho, normalised (E_mu[rho] = 1).
      mask: [..., n] bool.

    Returns:
      [...].
    """
    check_masked("n", mask, log_weights=log_weights)
    doubled = jnp.where(mask, 2 * log_weights, -jnp.inf)
    count = masked_count(mask, log_weights.dtype)[..., 0]
    return jnp.expm1(jax.nn.logsumexp(doubled, axis=-1) - jnp.log(jnp.maximum(count, 1)))


def _relative(log_weights: jax.Array, axes: int | tuple[int, ...]) -> jax.Array:
    """exp(x - max x) over some axes: 1 where x is +inf, and 0 where every x is -inf."""
    finite = jnp.minimum(log_weights, jnp.finfo(log_weights.dtype).max)
    top = jnp.max(finite, axis=axes, keepdims=True)
    return jnp.exp(finite - jnp.where(jnp.isneginf(top), 0, top))


def _sequence(log_ratio: jax.Array, mask: jax.Array) -> jax.Array:
    check_masked("T", mask, log_ratio=log_ratio)
    return jnp.where(mask, masked_sum(log_ratio, mask), 0)


def _normalized(log_ratio: jax.Array, mask: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    check_mask(mask)
    present = jnp.any(mask, axis=-1, keepdims=True)
    sums = jnp.where(present, masked_sum(log_ratio, mask), -jnp.inf)
    weights = _relative(sums, axes)
    count = jnp.sum(present, axes, keepdims=True).astype(weights.dtype)
    average = jnp.sum(weights, axes, keepdims=True) / jnp.maximum(count, 1)
    return jax.lax.stop_gradient(jnp.where(mask, weights / jnp.where(average > 0, average, 1), 0))
