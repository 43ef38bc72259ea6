"""Estimators of one term per sample, whose mean is the estimate; caps that minimise the error.

A term per sample is what bias and variance are made of. `every_sample` lists all samples of a small
outcome space with their probabilities, and `exact_moments` turns estimates into both, exactly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_at_least, check_nonnegative, check_open


def importance_terms(ratio: jax.Array, values: jax.Array) -> jax.Array:
    """Importance sampling: rho_i f_i.

    Estimand: E_pi[f]. Unbiased where pi << mu, else for E_pi[f; supp mu].
    n Var = E_mu[rho^2 f^2] - J^2.

    Args:
      ratio: [n] rho of the samples.
      values: [n] or [n, D] f of the samples.

    Returns:
      Terms, the shape of `values`.
    """
    return _times(ratio, values)


def truncated_terms(ratio: jax.Array, values: jax.Array, *, cap: Scalar) -> jax.Array:
    """Truncated importance sampling: min(rho_i, cap) f_i.

    Source: Ionides (2008). Bias: -E_mu[(rho - cap)_+ f]. Args and Returns: as `importance_terms`.
    """
    check_nonnegative(cap=cap)
    return _times(jnp.minimum(ratio, cap), values)


def clipped_terms(ratio: jax.Array, values: jax.Array, *, low: Scalar, high: Scalar) -> jax.Array:
    """Two-sided clip: clip(rho_i, low, high) f_i.

    Bias: E_mu[(low - rho)_+ f] - E_mu[(rho - high)_+ f]. Args and Returns: as `importance_terms`.
    """
    check_nonnegative(low=low, high=high)
    return _times(jnp.clip(ratio, low, high), values)


def self_normalized_terms(ratio: jax.Array, values: jax.Array) -> jax.Array:
    """Self-normalised: n rho_i f_i / sum_j rho_j.

    Source: Hesterberg (1995); Agapiou et al. (2017, arXiv:1511.06196). Within [min f, max f]; n
    bias tends to -E_mu[rho^2 (f - J)]. Where every ratio is 0 the terms are those of the plain
    mean.

    Args and Returns: as `importance_terms`.
    """
    mean = jnp.mean(ratio)
    return _times(jnp.where(mean > 0, ratio, 1) / jnp.where(mean > 0, mean, 1), values)


def gradient_terms(weight: jax.Array, advantages: jax.Array, scores: jax.Array) -> jax.Array:
    """Policy gradient: w_i A_i grad log pi(y_i).

    Estimand: grad J(pi) for w = rho; E_mu[A s] for w = 1. Advantages of a group bring their bias: a
    factor 1 - 1/G for `centered`, none for `leave_one_out`, c_G(p) for `group_standardized` of
    binary rewards (`standardized_gain`).

    Args:
      weight: [n].
      advantages: [n].
      scores: [n, D] grad log pi of each sample.

    Returns:
      [n, D].
    """
    return _times(weight * advantages, scores)


class Samples(NamedTuple):
    """All samples of size n from Y outcomes: `outcomes` int [Y^n, n], `probs` [Y^n]."""

    outcomes: jax.Array
    probs: jax.Array


def every_sample(probs: jax.Array, n: int) -> Samples:
    """Lists the Y^n samples of n independent draws, with their probabilities.

    Args:
      probs: [Y], summing to 1.
      n: draws, >= 1.

    Returns:
      Samples.

    Raises:
      ValueError: n is below 1, or the table would exceed ten million entries.
    """
    check_at_least(1, n=n)
    size = probs.shape[0] ** n * n
    if size > 10_000_000:
        raise ValueError(f"cannot list {probs.shape[0]}^{n} samples of {n}; take fewer draws")
    grid = jnp.meshgrid(*[jnp.arange(probs.shape[0])] * n, indexing="ij")
    outcomes = jnp.stack([axis.ravel() for axis in grid], axis=-1)
    return Samples(outcomes, jnp.prod(probs[outcomes], axis=-1))


class Moments(NamedTuple):
    """Exact error of an estimator; with D components, variance and mse are sums over them."""

    mean: jax.Array
    bias: jax.Array
    variance: jax.Array
    mse: jax.Array


def exact_moments(estimates: jax.Array, probs: jax.Array, truth: jax.Array) -> Moments:
    """Bias, variance and MSE of an estimator from its value on every sample.

    Args:
      estimates: [S] or [S, D].
      probs: [S], summing to 1.
      truth: scalar or [D].

    Returns:
      Moments.

    Example:
      >>> drawn = every_sample(jnp.array([0.5, 0.5]), 2)  # two flips of a fair coin
      >>> exact_moments(drawn.outcomes.mean(axis=-1), drawn.probs, jnp.array(0.5)).variance
      Array(0.125, dtype=float32)
    """
    mean = jnp.tensordot(probs, estimates, axes=1)
    bias = mean - truth
    squares = (estimates - mean[None]) ** 2
    variance = probs @ squares.reshape(squares.shape[0], -1).sum(axis=-1)
    return Moments(mean, bias, variance, variance + jnp.sum(bias**2))


def _times(weight: jax.Array, values: jax.Array) -> jax.Array:
    if weight.ndim != 1 or values.shape[:1] != weight.shape:
        raise ValueError(f"need weights [n], values [n, ...]; got {weight.shape}, {values.shape}")
    return weight.reshape(-1, *[1] * (values.ndim - 1)) * values


class OptimalClip(NamedTuple):
    """A cap and what it costs: bias [...D], variance and mse scalars (traces over D)."""

    tau: jax.Array
    bias: jax.Array
    variance: jax.Array
    mse: jax.Array


def truncation_error(
    tau: Scalar, ratios: jax.Array, values: jax.Array, n: Scalar, probs: jax.Array
) -> OptimalClip:
    """MSE of mean_n[min(rho, tau) f]: E[(rho - tau)_+ f]^2 + Var[min(rho, tau) f] / n.

    Exact under the distribution given; |bias| <= max|f| (1 + chi^2) / (4 tau).

    Args:
      tau: the cap.
      ratios: [m] rho, >= 0.
      values: [m] or [m, D] f.
      n: samples averaged.
      probs: [m] behaviour probabilities, summing to 1.

    Returns:
      OptimalClip at this tau.
    """
    table = values.reshape(values.shape[0], -1)
    weighted = jnp.minimum(ratios, tau)[:, None] * table
    mean = probs @ weighted
    bias = mean - probs @ (ratios[:, None] * table)
    variance = (probs @ jnp.sum(weighted**2, -1) - mean @ mean) / n
    mse = variance + bias @ bias
    shaped = bias.reshape(values.shape[1:])
    return OptimalClip(jnp.asarray(tau, ratios.dtype), shaped, variance, mse)


def optimal_clip(
    ratios: jax.Array, values: jax.Array, n: Scalar, weights: jax.Array | None = None
) -> OptimalClip:
    """The cap that minimises the MSE of mean_n[min(rho, tau) f], exactly, by scanning the ratios.

    Between sorted ratios n MSE is a convex quadratic with vertex
    <g + (n-1) T, S> / ((n-1) |S|^2 + Q), where S = E[f; rho > tau], T = E[rho f; rho > tau],
    Q = E[|f|^2; rho > tau], g = E[rho f]. For f in {0, 1} the minimiser solves
    tau = J + (n-1) E[(rho - tau)_+ f] (theorem `optimal_clip_fixed_point`).

    Support: pi << mu. Bias: exact for the distribution given; plugged in from a pilot sample it is
    useful only where the pilot is much larger than n.

    Args:
      ratios: [m] rho, >= 0.
      values: [m] or [m, D] f; for gradients, advantage times score.
      n: samples the estimate will average, >= 1.
      weights: [m] behaviour probabilities; None weighs the m alike.

    Returns:
      OptimalClip; the largest ratio as the cap, hence no truncation, where f is 0 everywhere.

    Raises:
      ValueError: shapes disagree.

    Example:
      >>> optimal_clip(jnp.array([0.5, 1.5]), jnp.array([0.0, 1.0]), 4).tau
      Array(1.2, dtype=float32)
    """
    if ratios.ndim != 1 or ratios.size == 0 or values.shape[:1] != ratios.shape:
        raise ValueError(f"need ratios [m], values [m, ...]; got {ratios.shape}, {values.shape}")
    probs = jnp.full_like(ratios, 1 / ratios.size) if weights is None else weights
    order = jnp.argsort(ratios)
    ratios, values, probs = ratios[order], values[order], probs[order]
    table = values.reshape(ratios.size, -1)

    def tail(x: jax.Array) -> jax.Array:
        return jnp.cumsum((probs[:, None] * x)[::-1], axis=0)[::-1]

    # One candidate per interval [rho_(k-1), rho_(k)]: the vertex, clamped.
    s, t = tail(table), tail(ratios[:, None] * table)
    q = tail(jnp.sum(table**2, -1, keepdims=True))[:, 0]
    top = jnp.sum((t[:1] + (n - 1) * t) * s, -1)
    bottom = (n - 1) * jnp.sum(s**2, -1) + q
    low = jnp.concatenate([jnp.zeros_like(ratios[:1]), ratios[:-1]])
    vertex = jnp.where(bottom > 0, top / jnp.where(bottom > 0, bottom, 1), jnp.inf)
    candidates = jnp.clip(vertex, low, ratios)
    errors = jax.vmap(lambda tau: truncation_error(tau, ratios, values, n, probs))(candidates)
    cost = jnp.where(jnp.isnan(errors.mse), -jnp.inf, errors.mse)
    best = cost.size - 1 - jnp.argmin(cost[::-1])  # of equal costs, that of the largest cap
    return jax.tree.map(lambda x: x[best], errors)


def ionides_clip(n: Scalar) -> jax.Array:
    """tau = sqrt(n).

    Source: Ionides (2008), the rate at which squared bias and variance fall together.
    """
    check_nonnegative(n=n)
    return jnp.sqrt(jnp.asarray(n, float))


def high_probability_clip(n: Scalar, moment: Scalar, delta: Scalar) -> jax.Array:
    """tau = sqrt(3 n M / (4 ln(2/delta))), M >= E_mu[rho^2 r].

    Then |J_tau - J| <= 2 sqrt(M ln(2/delta) / n) with probability 1 - delta for r in [0, 1], by
    Bernstein's inequality. E_mu[rho^2 r^2] is M for binary rewards alone: a fractional reward
    biases by r what varies by r^2.

    Args:
      moment: M, at most 1 + chi^2.
      delta: failure probability in (0, 1).
    """
    check_nonnegative(n=n, moment=moment)
    check_open(1, delta=delta)
    return jnp.sqrt(3 * jnp.asarray(n, float) * moment / (4 * jnp.log(2 / delta)))
