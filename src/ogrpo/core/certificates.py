"""Did this update improve the expected reward? A finite-sample answer, never an asymptotic one.

    per-sequence ratios pi/mu, pi_k/mu and rewards -> improvement_gap -> lower_confidence

The mean of `improvement_gap` never exceeds J(pi) - J(pi_k), so a lower confidence limit of that
mean certifies the improvement, averaged over the prompts sampled. It holds when

- the ratios are sequence-level: token ratios do not multiply into a change of measure;
- the centre is exact, pi_k/mu: with 1 in its place the gain over mu is certified, not over pi_k;
- the baseline is a constant, here the lowest reward: a group mean depends on the sample and
  shrinks the gain by 1 - 1/G, and weights 1/sigma(x) turn the mean over prompts into another one;
- the samples are independent, drawn by mu, and fresh: no part of the update saw them.

No assumption bounds the ratios and none concerns support. Theorem `certificate_family`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ogrpo.core.checks import as_floats, check_axes, check_nonnegative
from ogrpo.core.surrogates import clipped_surrogate

Scalar = jax.Array | float


class Certificate(NamedTuple):
    """A lower confidence limit `bound` of the mean, the `mean` seen, the `rate` that won."""

    bound: jax.Array
    mean: jax.Array
    rate: jax.Array


def improvement_gap(
    ratio: jax.Array,
    center: jax.Array,
    rewards: jax.Array,
    *,
    eps_low: Scalar,
    eps_high: Scalar,
    reward_low: Scalar,
    reward_high: Scalar,
) -> jax.Array:
    """X = f_eps(rho, c, r - low) + c (high - r) - (high - low), whose mean bounds the improvement.

    E_mu[X] <= J(pi) - J(pi_k) for any pi, pi_k, mu (theorem `gap_mean`), and X >= -(high - low)
    whatever the ratios (theorem `gap_ge`). On policy (c = 1) X is the clipped surrogate's increase
    over its value at pi_k, with the lowest reward as baseline; off policy c - 1 adds the noise of
    variance (high - low)^2 chi^2(pi_k||mu) that not knowing J(pi_k) costs.

    Args:
      ratio: [..., G] pi/mu of whole sequences.
      center: [..., G] pi_k/mu of whole sequences.
      rewards: [..., G], all within [reward_low, reward_high].
      eps_low: as in `clipped_surrogate`; it binds nowhere, advantages being nonnegative.
      eps_high: above pi_k's ratio by this much, more counts for nothing: less noise, more bias.
      reward_low: least reward there is, not least seen.
      reward_high: greatest reward there is.

    Returns:
      [..., G].

    Raises:
      ValueError: shapes disagree, or a known reward lies outside the range.

    Example:
      >>> improvement_gap(jnp.array([1.5]), jnp.ones(1), jnp.ones(1), eps_low=0.2, eps_high=0.25,
      ...                 reward_low=0.0, reward_high=1.0)
      Array([0.25], dtype=float32)
    """
    ratio, center, rewards = as_floats(ratio=ratio, center=center, rewards=rewards)
    check_axes("G", ratio=ratio, center=center, rewards=rewards)
    _check_within(rewards, reward_low, reward_high)
    gain = clipped_surrogate(
        ratio, rewards - reward_low, eps_low=eps_low, eps_high=eps_high, center=center
    )
    return gain + center * (reward_high - rewards) - (reward_high - reward_low)


def lower_confidence(
    values: jax.Array, *, floor: Scalar, delta: Scalar, rates: Sequence[float]
) -> Certificate:
    """max over l of mean(X) - floor ln(K/delta)/(n l) - psi(l) mean(X^2)/(l floor).

    psi(l) = -ln(1 - l) - l, K = len(rates). With probability at least 1 - delta the mean of the
    n expectations is above it (theorem `lower_confidence_family`), for independent X >= -floor,
    identically distributed or not; no upper bound is needed. At the best l it is
    mean(X) - sqrt(2 ln(K/delta) mean(X^2)/n) - floor ln(K/delta)/n (theorem `bernstein_radius`).
    Source: the inequality of Fan, Grama and Liu (2015), used as by Howard et al. (2021), about a
    centre of zero: an update near pi_k has values near zero. For a choice among m updates pass
    delta / m.

    Args:
      values: any shape; every entry is one independent draw.
      floor: > 0, no value can lie below minus it; `reward_high - reward_low` for `improvement_gap`.
      delta: chance of being wrong, in (0, 1).
      rates: l in (0, 1), chosen before the values are seen; see `bernstein_rate`.

    Returns:
      Certificate of scalars; the bound is -inf if a value lies below -floor.

    Raises:
      ValueError: floor, delta or a rate out of range.

    Example:
      >>> lower_confidence(jnp.full(1000, 0.1), floor=1.0, delta=0.05, rates=(0.2,)).bound > 0
      Array(True, dtype=bool)
    """
    (values,) = as_floats(values=values)
    _check_open(1, delta=delta, **{f"rates[{i}]": rate for i, rate in enumerate(rates)})
    _check_open(float("inf"), floor=floor)
    grid = jnp.asarray(_nonempty(rates), values.dtype)
    mean = jnp.mean(values)
    bounds = mean - _radius(values, grid, floor, jnp.log(len(rates) / jnp.asarray(delta)))
    best = jnp.argmax(bounds)
    bound = jnp.where(jnp.min(values) < -floor, -jnp.inf, bounds[best])
    return Certificate(bound, mean, grid[best])


def improvement_certificate(
    ratio: jax.Array,
    center: jax.Array,
    rewards: jax.Array,
    *,
    eps_low: Scalar,
    eps_high: Scalar,
    reward_low: Scalar,
    reward_high: Scalar,
    delta: Scalar,
    rates: Sequence[float],
) -> Certificate:
    """`lower_confidence` of `improvement_gap`: J(pi) - J(pi_k) > bound but for a chance of delta.

    J averages over the prompts sampled, each weighing as much as it has completions. Arguments as
    in the two functions; what must hold is at the head of this module.
    """
    gap = improvement_gap(
        ratio,
        center,
        rewards,
        eps_low=eps_low,
        eps_high=eps_high,
        reward_low=reward_low,
        reward_high=reward_high,
    )
    return lower_confidence(gap, floor=reward_high - reward_low, delta=delta, rates=rates)


def bernstein_rate(second_moment: Scalar, n: Scalar, *, floor: Scalar, delta: Scalar) -> jax.Array:
    """l = s/(1 + s), s = floor sqrt(2 ln(1/delta) / (n E[X^2])): the rate to choose beforehand.

    The best there is where `second_moment` is right, and valid where it is wrong; take it from
    earlier updates, never from the values to be certified. Theorem `bernstein_radius`.
    """
    check_nonnegative(second_moment=second_moment, n=n, floor=floor)
    _check_open(1, delta=delta)
    spread = jnp.asarray(second_moment, float) * n
    scale = floor * jnp.sqrt(-2 * jnp.log(jnp.asarray(delta, float)) / spread)
    return scale / (1 + scale)


def _radius(values: jax.Array, rate: jax.Array, floor: Scalar, log_odds: jax.Array) -> jax.Array:
    psi = -jnp.log1p(-rate) - rate
    noise = floor * log_odds.astype(rate.dtype) / (values.size * rate)
    return noise + psi / (rate * floor) * jnp.mean(values**2)


def _check_within(rewards: jax.Array, low: Scalar, high: Scalar) -> None:
    if any(isinstance(x, Tracer) for x in (rewards, low, high)):
        return
    least, most = float(jnp.min(rewards)), float(jnp.max(rewards))
    if not (least >= low and most <= high):
        span = f"[{least}, {most}]"
        raise ValueError(f"rewards span {span}, which must lie in [{low}, {high}]; widen the range")


def _check_open(top: float, **scalars: Scalar) -> None:
    check_nonnegative(**scalars)
    for name, value in scalars.items():
        if not isinstance(value, Tracer) and not 0 < float(value) < top:
            raise ValueError(f"{name} must lie strictly between 0 and {top}, got {value}")


def _nonempty(rates: Sequence[float]) -> Sequence[float]:
    if len(rates) == 0:
        raise ValueError("rates is empty; pass one rate at least, `bernstein_rate` finds one")
    return rates
