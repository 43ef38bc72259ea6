"""Caps of importance ratios that minimise the error, exactly or by rate."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_nonnegative


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
      OptimalClip; where f vanishes beyond every cap, no truncation.

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
    best = jnp.argmin(jnp.where(jnp.isnan(errors.mse), -jnp.inf, errors.mse))
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
      n: samples.
      moment: M, at most 1 + chi^2.
      delta: failure probability in (0, 1).

    Returns:
      The cap.
    """
    check_nonnegative(n=n, moment=moment, delta=delta)
    return jnp.sqrt(3 * jnp.asarray(n, float) * moment / (4 * jnp.log(2 / delta)))
