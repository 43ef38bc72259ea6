"""Advantages for what is drawn several times: Pass@k, the best of k, and maximum likelihood.

As `ogrpo.core.advantages`, [..., G] -> [..., G]; a reward of NaN was not judged. `k` is a number of
completions, and may be traced: binomials are quotients of gamma functions.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from ogrpo.core.advantages import centered, judged
from ogrpo.core.checks import check_group, check_nonnegative
from ogrpo.core.masked import masked_count, masked_mean

Scalar = jax.Array | float


def mean_normalized(rewards: jax.Array) -> jax.Array:
    """MaxRL: A_i = (r_i - mean(r)) / mean(r), 0 where mean(r) <= 0. [..., G] -> [..., G].

    Source: Tajwar et al. (2026, arXiv:2602.02710). For rewards 0 and 1 under `sequence_sum` it is
    unbiased for the gradient of the log-likelihood of a success, cut after G - 1 terms:
    -sum_{j < G} (1 - p)^j / j. Uncentred, r_i / mean(r), it is cut after G.
    """
    deviations = centered(rewards)
    mean = masked_mean(*judged(rewards))
    return jnp.where(mean > 0, deviations / jnp.where(mean > 0, mean, 1), 0)


def pass_at_k(rewards: jax.Array, *, k: Scalar = 2.0) -> jax.Array:
    """Standardised Pass@k of the sets of k that hold i: A_i = (E_{S ni i}[R(S)] - R) / std R.

    R(S) = 1 if a reward in S is > 0, R = 1 - C(f, k) / C(n, k) its mean over all sets of k, f the
    failures, std R = sqrt(R (1 - R)). E = 1 for successes, 1 - C(f - 1, k - 1) / C(n - 1, k - 1)
    for failures.

    Source: Pass@k training (Chen et al. 2025, arXiv:2508.10751), analytical derivation.

    Args:
      rewards: [..., G], G >= max(k, 2).
      k: size of a set, >= 1.

    Returns:
      [..., G]; 0 where every set succeeds or none does; NaN if G < k.
    """
    check_group(rewards)
    check_nonnegative(k=k)
    values, present = judged(rewards)
    success = present & (values > 0)
    n = masked_count(present, values.dtype)
    failures = n - masked_count(success, values.dtype)
    mean = 1 - _choose(failures, k) / jnp.maximum(_choose(n, k), 1)
    missed = _choose(failures - 1, k - 1) / jnp.maximum(_choose(n - 1, k - 1), 1)
    mixed = (mean > 1e-6) & (mean < 1 - 1e-6)
    std = jnp.sqrt(jnp.where(mixed, mean * (1 - mean), 1))
    credit = (jnp.where(success, 1.0, 1 - missed) - mean) / std
    enough = jnp.where(k > rewards.shape[-1], jnp.nan, 1.0)
    return enough * jnp.where(present & mixed & (n >= k), credit, 0)


def max_at_k(rewards: jax.Array, *, k: Scalar = 2.0) -> jax.Array:
    """MaxPO: A_i = k (E_{S ni i}[max S] - E_{S not ni i}[max S]), over the sets S of k completions.

    Source: Takashiro et al. (2026, arXiv:2606.06080): the marginal gain E[max(T + i) - max T] of i
    over sets T of k - 1 others, less the others' mean gain where i is left out (leave two out).
    Unbiased for the gradient of the expected best of k under `sequence_sum`; the advantages of a
    group sum to 0.

    Args:
      rewards: [..., G], G >= k + 1.
      k: size of a set, >= 1; 1 is `leave_one_out`.

    Returns:
      [..., G]; NaN if G <= k.
    """
    check_group(rewards)
    check_nonnegative(k=k)
    values, present = judged(rewards)
    n = masked_count(present, values.dtype)
    order = jnp.argsort(jnp.argsort(jnp.where(present, values, jnp.inf), axis=-1), axis=-1)
    place, own = order[..., None, :], order[..., :, None]
    other = present[..., None, :] & (place != own)
    rank = (place - (own < place).astype(place.dtype)).astype(
        values.dtype
    )  # [..., i, j]: of j, where i is left out
    theirs, mine = values[..., None, :], values[..., :, None]
    best_with = _choose(rank, k - 2) / jnp.maximum(_choose(n - 1, k - 1), 1)[..., None]
    best_without = _choose(rank, k - 1) / jnp.maximum(_choose(n - 1, k), 1)[..., None]
    with_i = jnp.sum(jnp.where(other, best_with * jnp.maximum(mine, theirs), 0), axis=-1)
    without_i = jnp.sum(jnp.where(other, best_without * theirs, 0), axis=-1)
    credit = k * (jnp.where(k < 2, values, with_i) - without_i)
    enough = jnp.where(k >= rewards.shape[-1], jnp.nan, 1.0)
    return enough * jnp.where(present & (n > k), credit, 0)


def _choose(n: jax.Array, k: Scalar) -> jax.Array:
    """C(n, k) of whole numbers, 0 where k < 0 or k > n."""
    there = (k >= 0) & (n >= k)
    n, k = jnp.where(there, n, 0), jnp.where(there, k, 0)
    return jnp.where(there, jnp.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)), 0)
