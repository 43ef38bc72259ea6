"""The share of completions that survives a cap on the product of ratios, by their length.

Token log-ratios D are taken for independent, of one mean m and standard deviation s. Their sum over
L tokens has mean L m and standard deviation s sqrt(L), and is nearly normal. A cap c on the product
of the ratios therefore means log(c) / L for the mean log-ratio of a completion: 3 is .0037 at 300
tokens, less than engines differ, so that a cap that looks generous drops whole batches.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_nonnegative


def sequence_survival(
    lengths: jax.Array, mean: Scalar, std: Scalar, *, low: Scalar, high: Scalar
) -> jax.Array:
    """P(low <= prod_t rho_t <= high): Phi((log high - L m) / (s sqrt L)) - Phi(the same of low).

    Args:
      lengths: [n] tokens of each completion.
      mean: m of token log-ratios, in nats.
      std: s of them, >= 0.
      low: smallest ratio that is kept, >= 0.
      high: largest, >= 0; infinite for none.

    Returns:
      [n].

    Example:
      >>> kept = sequence_survival(jnp.array([30, 3000]), 0.0, 0.02, low=0.5, high=2.0)
      >>> [round(float(share), 3) for share in kept]
      [1.0, 0.473]
    """
    check_nonnegative(std=std, low=low, high=high)
    lengths = jnp.asarray(lengths, float)
    center, spread = lengths * mean, jnp.sqrt(lengths) * std
    ends = [jnp.log(jnp.asarray(end, float)) - center for end in (low, high)]
    scale = jnp.where(spread > 0, spread, 1)
    below, above = (
        jnp.where(spread > 0, jax.scipy.stats.norm.cdf(end / scale), (end >= 0).astype(float))
        for end in ends
    )
    return above - jnp.where((spread > 0) | (ends[0] != 0), below, 0)


def survival_bound(lengths: jax.Array, mean: Scalar, std: Scalar, *, high: Scalar) -> jax.Array:
    """Returns what P(prod_t rho_t <= high) is at least, whatever the law of independent D_t.

    1 - L s^2 / (L s^2 + (log high - L m)^2) where log high > L m, else 0: Cantelli's inequality.
    [n] -> [n].
    """
    check_nonnegative(std=std, high=high)
    lengths = jnp.asarray(lengths, float)
    room = jnp.log(jnp.asarray(high, float)) - lengths * mean
    variance = lengths * std**2
    return jnp.where(room > 0, 1 - variance / (variance + room**2), 0)
