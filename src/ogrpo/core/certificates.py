"""Did this update improve the expected reward? A finite-sample answer, never an asymptotic one.

    per-sequence ratios pi/mu, pi_k/mu and rewards -> improvement_gap -> betting_confidence

The mean of `improvement_gap` never exceeds J(pi) - J(pi_k), so a lower confidence limit of that
mean certifies the improvement, averaged over the prompts sampled. It holds when

- the ratios are sequence-level: token ratios do not multiply into a change of measure;
- the centre is exact, pi_k/mu: with 1 in its place the gain over mu is certified, not over pi_k;
- the baseline is a constant, here the lowest reward: a group mean depends on the sample and
  shrinks the gain by 1 - 1/G, and weights 1/sigma(x) turn the mean over prompts into another one;
- the samples are drawn by mu, and fresh: no part of the update saw them. Which sampler, policies
  and prompt a draw is of, and when to stop, may depend on all draws before it.

No assumption bounds the ratios and none concerns support. Theorem `certificate_anytime`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ogrpo.core.checks import Scalar, as_floats, check_axes, check_nonnegative, check_open
from ogrpo.core.surrogates import clipped_surrogate


class Certificate(NamedTuple):
    """A lower confidence limit `bound` of the mean, the `mean` seen, and the `evidence` in nats.

    The evidence is the logarithm of what betting against a mean of zero has won: that much speaks
    for an improvement, and ln(1/delta) certifies it.
    """

    bound: jax.Array
    mean: jax.Array
    evidence: jax.Array


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
      eps_high: how far above pi_k's ratio a ratio still counts: a smaller one has less noise, and
        more bias.
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
    if not any(isinstance(x, Tracer) for x in (rewards, reward_low, reward_high)):
        with jax.ensure_compile_time_eval():  # rewards may be known inside a jit, too
            least, most = float(jnp.min(rewards)), float(jnp.max(rewards))
        as_known = rewards.dtype.type  # .3 in float32 lies above .3
        if not (least >= as_known(reward_low) and most <= as_known(reward_high)):
            raise ValueError(
                f"rewards span [{least}, {most}], which must lie in [{reward_low}, {reward_high}];"
                " widen the range"
            )
    gain = clipped_surrogate(
        ratio, rewards - reward_low, eps_low=eps_low, eps_high=eps_high, center=center
    )
    return gain + center * (reward_high - rewards) - (reward_high - reward_low)


def mixture_ratios(log_ratio: jax.Array, *, share: Scalar) -> tuple[jax.Array, jax.Array]:
    """pi/m and pi_k/m, m = share pi + (1 - share) pi_k: `ratio` and `center` of `improvement_gap`.

    For draws of pi and of pi_k in these shares, which are together draws of m. With share > 0 the
    ratio is at most 1/share: the gap's mean is then J(pi) - J(pi_k) without a clip, whatever the
    supports, and in equal shares its second moment is at most (high - low)^2 TV(pi, pi_k). With
    share = 0 all draws are of pi_k. Source: the balance heuristic of Veach and Guibas (1995);
    theorems `mixture_mean`, `balance_ratio`, `halves_mean`, `halves_second_moment`.

    Args:
      log_ratio: [...] log pi/pi_k of whole sequences, whoever drew them; counted up to +-80.
      share: of the draws that are pi's, in [0, 1).

    Returns:
      Two arrays [...].
    """
    (log_ratio,) = as_floats(log_ratio=log_ratio)
    ratio = jnp.exp(jnp.clip(log_ratio, -80, 80))
    return 1 / (share + (1 - share) / ratio), 1 / (share * ratio + 1 - share)


def betting_confidence(
    values: jax.Array,
    *,
    floor: Scalar,
    delta: Scalar,
    rates: Sequence[float],
    where: jax.Array | None = None,
) -> Certificate:
    """The m at which the wealth (1/K) sum_l prod_i (1 + l X_i/B) / (1 + l m/B) falls to 1/delta.

    B = floor, K = len(rates). With probability at least 1 - delta the mean of the conditional
    expectations is above it, for values X >= -B, each drawn in any way from the past; read after
    every draw it is above them all (theorem `anytime_confidence`). No upper bound is needed. It is
    never below the limit of any one exponential rate at delta / K (theorem `betting_dominates`),

        mean(X) - B ln(K/delta)/(n l) - psi(l) mean(X^2)/(l B),  psi(l) = -ln(1 - l) - l.

    Source: betting on means (Waudby-Smith and Ramdas, arXiv:2010.09686; Orabona and Jun,
    arXiv:2110.14099); the exponential inequality of Fan, Grama and Liu (2015). For a choice among
    k updates pass delta / k.

    Args:
      values: any shape; every entry is one draw.
      floor: > 0, no value can lie below minus it.
      delta: chance of being wrong, in (0, 1).
      rates: stakes l in (0, 1), as shares of the largest that no value can ruin; fixed before the
        values are seen, see `bernstein_rate`.
      where: bool, shaped as the values: the entries that are draws; all of them by default. One at
        least, and a program compiled for a shape then serves fewer draws too.

    Returns:
      Certificate of scalars. The bound is found by bisection from below and is -floor where nothing
      better holds, -inf if a value lies below -floor, NaN if one is.

    Raises:
      ValueError: floor, delta or a rate out of range.

    Example:
      >>> betting_confidence(jnp.full(1000, 0.1), floor=1.0, delta=0.05, rates=(0.2,)).bound > 0
      Array(True, dtype=bool)
    """
    (values,) = as_floats(values=values)
    check_open(1, delta=delta, **{f"rates[{i}]": rate for i, rate in enumerate(rates)})
    check_open(float("inf"), floor=floor)
    if len(rates) == 0:
        raise ValueError("rates is empty; pass one rate at least, `bernstein_rate` finds one")
    grid = jnp.asarray(rates, values.dtype)
    drawn = jnp.ones(values.shape, bool) if where is None else where
    scaled = jnp.where(drawn, values, 0).ravel() / floor
    count = jnp.sum(drawn, dtype=values.dtype)
    growth = jnp.sum(jnp.log1p(grid[:, None] * jnp.maximum(scaled, -1)[None]), axis=-1)
    goal = -jnp.log(jnp.asarray(delta, values.dtype))

    def log_wealth(m: jax.Array) -> jax.Array:
        return jax.scipy.special.logsumexp(growth - count * jnp.log1p(grid * m), b=1 / len(rates))

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        holds = log_wealth(middle) >= goal
        return jnp.where(holds, middle, low), jnp.where(holds, high, middle)

    mean = jnp.sum(scaled) / count
    low, _ = jax.lax.fori_loop(0, 60, halve, (-jnp.ones_like(mean), mean))
    low = jnp.where(jnp.min(scaled) < -1, -jnp.inf, low) + 0 * mean
    return Certificate(low * floor, mean * floor, log_wealth(jnp.zeros_like(mean)))


def logged_gain(
    log_ratio: jax.Array,
    rewards: jax.Array,
    *,
    slack: Scalar,
    headroom: Scalar,
    reward_low: Scalar,
    reward_high: Scalar,
) -> jax.Array:
    """X = (min(e^-slack pi/mu, 1 + headroom) - 1) (r - low): what a log supports of a candidate pi.

    E_mu[X] <= J(pi) - J(mu), so that `betting_confidence` of X, with the range of the rewards as
    floor, bounds the gain over the policies that drew the log, read at any time and before pi is
    trained on it. They may change from draw to draw; pi may follow from earlier draws alone.
    Theorem `gap_mean` with pi_k = mu.

    Args:
      log_ratio: [..., G] log pi/mu of whole sequences.
      rewards: [..., G], all within [reward_low, reward_high].
      slack: nats by which a log-ratio may be too large; 0 where behaviour log-probs are exact. An
        estimate of mu without a bound on its error supports nothing.
      headroom: above 1 + this a ratio counts for no more.
      reward_low: least reward there is.
      reward_high: greatest reward there is.

    Returns:
      [..., G].
    """
    (log_ratio,) = as_floats(log_ratio=log_ratio)
    ratio = jnp.exp(jnp.minimum(log_ratio - slack, 80))
    span = {"reward_low": reward_low, "reward_high": reward_high}
    ones = jnp.ones_like(ratio)
    return improvement_gap(ratio, ones, rewards, eps_low=1.0, eps_high=headroom, **span)


def bernstein_rate(second_moment: Scalar, n: Scalar, *, floor: Scalar, delta: Scalar) -> jax.Array:
    """l = s/(1 + s), s = floor sqrt(2 ln(1/delta) / (n E[X^2])): the rate to choose beforehand.

    About the best rate where `second_moment`, > 0, is right, and valid where it is wrong. Take it
    from earlier updates, never from the values to be certified. Theorem `bernstein_radius`.
    """
    check_open(float("inf"), second_moment=second_moment, n=n, floor=floor)
    check_open(1, delta=delta)
    spread = jnp.asarray(second_moment, float) * n
    scale = floor * jnp.sqrt(-2 * jnp.log(jnp.asarray(delta, float)) / spread)
    return scale / (1 + scale)


def certificate_size(
    mean: Scalar, second_moment: Scalar, *, floor: Scalar, delta: Scalar
) -> jax.Array:
    """n with mean = sqrt(2 E[X^2] ln(1/delta)/n) + floor ln(1/delta)/n: draws that certify X.

    About so many are needed at the best rate (theorem `bernstein_radius`); the second term decides
    where E[X^2] is small beside floor times the mean.

    Example:
      >>> round(float(certificate_size(0.05, 0.005, floor=1.0, delta=0.05)))
      93
    """
    check_nonnegative(mean=mean, second_moment=second_moment)
    check_open(float("inf"), floor=floor)
    check_open(1, delta=delta)
    noise = 2 * jnp.asarray(second_moment, float)
    root = 2 * mean / jnp.maximum(jnp.sqrt(noise + 4 * floor * mean) + jnp.sqrt(noise), 1e-30)
    return -jnp.log(jnp.asarray(delta, float)) / root**2
