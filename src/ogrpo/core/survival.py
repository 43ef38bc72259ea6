"""The share of completions that survives a gate of ratios, from lengths and measured log-ratios.

Token log-ratios D are taken for independent, of one mean m and standard deviation s. Their sum over
L tokens has mean L m and standard deviation s sqrt(L), and is nearly normal. A cap c on the product
of the ratios therefore means log(c) / L for the mean log-ratio of a completion: 3 is .0037 at 300
tokens, less than engines differ, so that a cap that looks generous drops whole batches.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_masked, check_nonnegative
from ogrpo.core.masked import masked_mean


class Spread(NamedTuple):
    """Mean and standard deviation of token log-ratios, in nats."""

    mean: jax.Array
    std: jax.Array


def spread_of(log_ratio: jax.Array, mask: jax.Array) -> Spread:
    """Measures log-ratios over all tokens. [..., T], bool [..., T] -> two scalars."""
    check_masked("T", mask, log_ratio=log_ratio)
    mean = masked_mean(log_ratio, mask, None)
    return Spread(mean, jnp.sqrt(masked_mean((log_ratio - mean) ** 2, mask, None)))


def token_survival(lengths: jax.Array, spread: Spread, *, low: Scalar, high: Scalar) -> jax.Array:
    """P(low <= rho <= high) of one token, whatever the length: what IcePop and TIS leave as it is.

    Args:
      lengths: [n] tokens of each completion.
      spread: of token log-ratios.
      low: smallest ratio that is kept, >= 0.
      high: largest, >= 0; infinite for none.

    Returns:
      [n].
    """
    return _inside(jnp.ones_like(lengths, float), spread, low, high, power=0.0)


def sequence_survival(
    lengths: jax.Array, spread: Spread, *, low: Scalar, high: Scalar
) -> jax.Array:
    """P(low <= prod_t rho_t <= high): Phi((log high - L m) / (s sqrt L)) - Phi(the same of low).

    Args and Returns: as `token_survival`, for the completion.

    Example:
      >>> few = Spread(jnp.array(0.0), jnp.array(0.02))
      >>> kept = sequence_survival(jnp.array([30, 3000]), few, low=0.5, high=2.0)
      >>> [round(float(share), 3) for share in kept]
      [1.0, 0.473]
    """
    return _inside(jnp.asarray(lengths, float), spread, low, high, power=1.0)


def geometric_survival(
    lengths: jax.Array, spread: Spread, *, low: Scalar, high: Scalar
) -> jax.Array:
    """P(low <= exp(mean_t D_t) <= high): `sequence_survival` with bounds to the power L.

    Args and Returns: as `sequence_survival`.
    """
    lengths = jnp.asarray(lengths, float)
    return _inside(lengths, Spread(spread.mean, spread.std / lengths), low, high, power=0.0)


def negatives_survival(lengths: jax.Array, spread: Spread, *, delta: Scalar) -> jax.Array:
    """P(mean_t(log mu - log pi) <= delta), of completions of negative advantage. [n] -> [n].

    Source: the off-policy sequence mask of DeepSeek-V3.2 (2025, arXiv:2512.02556), eq. 9.
    """
    return geometric_survival(lengths, spread, low=jnp.exp(-jnp.asarray(delta)), high=jnp.inf)


def k3_survival(lengths: jax.Array, spread: Spread, *, limit: Scalar) -> jax.Array:
    """P(mean_t (rho_t - 1 - D_t) <= limit) of normal D: E = e^(m + s^2/2) - 1 - m. [n] -> [n].

    Its variance is e^(2m + s^2) (e^(s^2) - 1) + s^2 - 2 s^2 e^(m + s^2/2), over L in the mean.
    """
    mean, variance = spread.mean, spread.std**2
    ratio = jnp.exp(mean + variance / 2)
    spread_squared = ratio**2 * jnp.expm1(variance) + variance - 2 * variance * ratio
    excess = Spread(ratio - 1 - mean, jnp.sqrt(jnp.maximum(spread_squared, 0)))
    return geometric_survival(lengths, excess, low=0.0, high=jnp.exp(jnp.asarray(limit, float)))


def spread_of_kl(kl: Scalar) -> Spread:
    """The spread of normal log-ratios with KL(mu||pi) = kl nats a token: -kl and sqrt(2 kl).

    The normal law of which E_mu[rho] = 1, as the mean of a ratio is wherever pi << mu.
    """
    check_nonnegative(kl=kl)
    return Spread(-jnp.asarray(kl, float), jnp.sqrt(2 * jnp.asarray(kl, float)))


def survival_bound(lengths: jax.Array, spread: Spread, *, high: Scalar) -> jax.Array:
    """Returns what P(prod_t rho_t <= high) is at least, whatever the law of independent D_t.

    1 - L s^2 / (L s^2 + (log high - L m)^2) where log high > L m, else 0: Cantelli's inequality.
    [n] -> [n].
    """
    check_nonnegative(high=high)
    lengths = jnp.asarray(lengths, float)
    room = jnp.log(jnp.asarray(high, float)) - lengths * spread.mean
    variance = lengths * spread.std**2
    return jnp.where(room > 0, 1 - variance / (variance + room**2), 0)


def _inside(
    lengths: jax.Array, spread: Spread, low: Scalar, high: Scalar, *, power: float
) -> jax.Array:
    """The normal mass between two ratios, of a sum with mean L^power m and deviation s sqrt(L)."""
    check_nonnegative(low=low, high=high)
    mean, std = lengths**power * spread.mean, jnp.sqrt(lengths) * spread.std
    ends = [jnp.log(jnp.asarray(end, float)) - mean for end in (low, high)]
    scale = jnp.where(std > 0, std, 1)
    below, above = (
        jnp.where(std > 0, jax.scipy.stats.norm.cdf(end / scale), (end >= 0).astype(mean.dtype))
        for end in ends
    )
    return above - jnp.where((std > 0) | (ends[0] != 0), below, 0)


SURVIVALS: dict[str, Callable[..., jax.Array]] = {
    "token": token_survival,
    "sequence": sequence_survival,
    "geometric": geometric_survival,
    "negatives": negatives_survival,
    "k3": k3_survival,
}
"""Gate, as in `ogrpo.core.algorithms.GATES` -> `(lengths, spread, *, bounds) -> share`."""
