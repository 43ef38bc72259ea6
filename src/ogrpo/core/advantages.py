"""Advantages of a group, [..., G] -> [..., G]: what a completion earned beyond its siblings.

All take rewards of the completions of one prompt along the last axis. A baseline that is made of
siblings needs two or more; `leave_prompt_out`, `above_baseline`, `raw` and `successes` do not. A
completion whose reward is NaN was not judged: its advantage is 0, and its siblings are compared as
if it were not there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from ogrpo.core.checks import (
    Scalar,
    as_floats,
    check_at_least,
    check_group,
    check_nonnegative,
    check_open,
)
from ogrpo.core.masked import masked_count, masked_mean, masked_sum
from ogrpo.core.ratios import exp_ratio


class MaskedRewards(NamedTuple):
    """Rewards, 0 for what was not judged, and True for what was. [..., G] each."""

    values: jax.Array
    present: jax.Array


def judged(rewards: jax.Array, least: int = 1) -> MaskedRewards:
    """Separates what was judged from what was not. [..., G], NaN where not judged -> MaskedRewards.

    Raises:
      ValueError: a group has fewer than `least` completions, or rewards are not floats.
    """
    check_group(rewards, least)
    (values,) = as_floats(rewards=rewards)
    present = ~jnp.isnan(values)
    return MaskedRewards(jnp.where(present, values, 0), present)


def centered(rewards: jax.Array) -> jax.Array:
    """Centred: A_i = r_i - mean(r).

    Source: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783). Bias: the gradient is (1 - 1/G) times the
    true one, since the baseline contains the sample.

    Args:
      rewards: [..., G], G >= 2.

    Returns:
      [..., G].

    Raises:
      ValueError: G < 2.

    Example:
      >>> centered(jnp.array([1.0, 0.0, 0.0, 0.0]))
      Array([ 0.75, -0.25, -0.25, -0.25], dtype=float32)
    """
    values, present = judged(rewards, 2)
    return jnp.where(present, values - masked_mean(values, present), 0)


def leave_one_out(rewards: jax.Array) -> jax.Array:
    """Leave-one-out: A_i = r_i - mean of the others = G/(G-1) (r_i - mean(r)).

    Source: Kool et al. (2019); RLOO (Ahmadian et al. 2024, arXiv:2402.14740). Unbiased.
    Args, Returns, Raises: as `centered`.
    """
    deviations = centered(rewards)
    size = masked_count(judged(rewards).present, deviations.dtype)
    return deviations * (size / jnp.maximum(size - 1, 1))


def group_standardized(
    rewards: jax.Array, *, ddof: int = 0, eps_inside: Scalar = 0.0, eps_outside: Scalar = 0.0
) -> jax.Array:
    """Standardised: A_i = (r_i - mean(r)) / (sqrt(Var(r) + eps_inside) + eps_outside).

    Source: GRPO (Shao et al. 2024, arXiv:2402.03300); off-policy GRPO (Mroueh et al. 2025,
    arXiv:2505.22257) has eps inside the root. A group of equal rewards gets exactly 0, however
    small the eps. Bias: the expected gradient of a binary reward is c_G(p) grad J, c_G -> 1/sqrt(p
    (1-p)): prompts are weighed by their difficulty.

    Args:
      rewards: [..., G], G >= 2.
      ddof: 0 divides the variance by G (population), 1 by G - 1 (Bessel).
      eps_inside: added to the variance.
      eps_outside: added to the standard deviation.

    Returns:
      [..., G].

    Raises:
      ValueError: G < 2 or an eps is negative.

    Example:
      >>> group_standardized(jnp.array([[1.0, 0.0], [1.0, 1.0]]), eps_outside=1.0)
      Array([[ 0.33333334, -0.33333334],
             [ 0.        ,  0.        ]], dtype=float32)
    """
    check_nonnegative(eps_inside=eps_inside, eps_outside=eps_outside)
    deviations = centered(rewards)
    size, total = rewards.shape[-1], jnp.sum(deviations**2, axis=-1, keepdims=True)
    count = masked_count(judged(rewards).present, deviations.dtype)
    left_out = total / jnp.maximum(count - ddof, 1)
    variance = jnp.where(count == size, total / (size - ddof), left_out)
    varied = ~zero_variance_mask(rewards)[..., None]
    scale = jnp.sqrt(jnp.where(varied, variance, 1) + eps_inside) + eps_outside
    return jnp.where(varied, deviations / scale, 0)


def zero_variance_mask(rewards: jax.Array) -> jax.Array:
    """True where all rewards of a group are equal: it teaches nothing by itself.

    [..., G] -> [...] bool; of one completion always.
    """
    values, present = judged(rewards)
    highest = jnp.max(jnp.where(present, values, -jnp.inf), axis=-1)
    return highest <= jnp.min(jnp.where(present, values, jnp.inf), axis=-1)


def batch_standardized(
    rewards: jax.Array, *, ddof: int = 1, eps_outside: Scalar = 0.0
) -> jax.Array:
    """Scaled by the batch: A_i = (r_i - mean of the group) / (std of all rewards + eps_outside).

    One scale for every prompt, so none is weighed by its difficulty. Depends on the batch: compute
    it before cutting microbatches.

    Args:
      rewards: [..., G], G >= 2; every axis is in the standard deviation.
      ddof: 0 for the population's, 1 for Bessel's.
      eps_outside: added to the standard deviation.

    Returns:
      [..., G]; 0 where all rewards are equal.
    """
    check_nonnegative(eps_outside=eps_outside)
    deviations = centered(rewards)
    values, present = judged(rewards)
    varied = ~zero_variance_mask(rewards.ravel())
    off = jnp.where(present & varied, values - masked_mean(values, present, None), 0)
    size = jnp.maximum(masked_count(present, values.dtype, None) - ddof, 1)
    spread = jnp.sqrt(jnp.sum(off**2) / size)
    return jnp.where(varied, deviations / jnp.where(varied, spread + eps_outside, 1), 0)


def batch_centered(rewards: jax.Array) -> jax.Array:
    """A_i = r_i - the mean of all rewards of the batch. [..., G] -> [..., G], G >= 1.

    Bias: (1 - 1/n) times the true gradient for n completions, as the baseline contains the sample.
    """
    values, present = judged(rewards)
    return jnp.where(present, values - masked_mean(values, present, None), 0)


def decoupled_standardized(
    rewards: jax.Array, *, weights: jax.Array, eps_outside: Scalar = 1e-6
) -> jax.Array:
    """GDPO: A_i = sum_j w_j (r_ij - mean_j) / (std_j + eps), each reward standardised by itself.

    Source: GDPO (2026, arXiv:2601.05242), before it is whitened over the batch (`whitened`). A
    reward that varies little counts as much as one that varies a lot.

    Args:
      rewards: [..., G, J], J rewards of a completion, G >= 2.
      weights: [J].
      eps_outside: added to Bessel's standard deviation.

    Returns:
      [..., G].
    """
    each = group_standardized(jnp.moveaxis(rewards, -1, 0), ddof=1, eps_outside=eps_outside)
    return jnp.tensordot(weights, each, axes=1)


def raw(rewards: jax.Array) -> jax.Array:
    """A_i = r_i, no baseline: unbiased, of the largest variance. [..., G] -> [..., G].

    Source: Williams (1992). A group may have one completion.
    """
    return judged(rewards).values


def lowered_baseline(rewards: jax.Array, *, shift: Scalar = 0.1) -> jax.Array:
    """A_i = r_i - (mean(r) - shift): successes count for more than failures.

    Source: AsymRE (Arnal et al. 2025, arXiv:2506.20520), delta V = -shift. shift > 0 adds
    shift KL(mu||pi) to the expected loss, up to a constant. [..., G] -> [..., G].
    """
    return jnp.where(judged(rewards, 2).present, centered(rewards) + shift, 0)


def soft_value(rewards: jax.Array, *, tau: Scalar = 1.0) -> jax.Array:
    """A_i = r_i - tau (logsumexp(r / tau) - log G), the soft value as baseline.

    Source: Kimi k1.5 (2025, arXiv:2501.12599), section 2.3. Tends to `centered` as tau grows, and
    to r - max(r) as tau falls. [..., G] -> [..., G].

    Args:
      rewards: [..., G], G >= 2.
      tau: temperature, > 0.

    Returns:
      [..., G].
    """
    check_open(float("inf"), tau=tau)
    values, present = judged(rewards, 2)
    total = jax.nn.logsumexp(values / tau, axis=-1, keepdims=True, where=present)
    size = jnp.maximum(masked_count(present, values.dtype), 1)
    return jnp.where(present, values - tau * (total - jnp.log(size)), 0)


def drop_negatives(rewards: jax.Array, key: jax.Array) -> jax.Array:
    """A_i = r_i - mean of the kept, (negatives - positives) random negatives dropped.

    Source: RED-Drop (Yao et al. 2025, arXiv:2509.24203). A positive has r >= mean(r). As pair
    weights of 0 and 1, with the *subset* mean as baseline.

    Args:
      rewards: [..., G], G >= 2; centred rewards do as well.
      key: a PRNG key, consumed.

    Returns:
      [..., G], 0 where dropped; the dropped still count in the denominator of a reduction.
    """
    values, present = judged(rewards, 2)
    positive = present & ~(centered(rewards) < 0)
    allowed = jnp.sum(positive, axis=-1, keepdims=True)
    uniforms = jnp.where(positive, -1.0, jax.random.uniform(key, values.shape))
    rank = jnp.argsort(jnp.argsort(jnp.where(present, uniforms, 2.0), axis=-1), axis=-1)
    kept = present & (positive | (rank < 2 * allowed))
    return jnp.where(kept, values - masked_mean(values, kept), 0)


def exponentially_weighted(rewards: jax.Array, *, tau: Scalar = 1.0) -> jax.Array:
    """exp(A_i / tau) A_i with A_i = r_i - mean(r), unnormalised.

    Source: RED-Weight (Yao et al. 2025, arXiv:2509.24203). With the plain mean in A this adds
    (rbar_w - rbar) sum w s to any symmetric pair weighting: a push towards imitation.

    Args:
      rewards: [..., G], G >= 2; centred rewards do as well.
      tau: temperature, > 0; exp is held constant beyond A / tau = 60.

    Returns:
      [..., G].
    """
    check_open(float("inf"), tau=tau)
    advantages = centered(rewards)
    return exp_ratio(advantages / tau) * advantages


def successes(rewards: jax.Array, *, threshold: Scalar = 0.0) -> jax.Array:
    """1 where r_i > threshold, else 0: imitate what was rewarded. [..., G] -> [..., G].

    Source: RAFT (Dong et al. 2023) as Xiong et al. (2025, arXiv:2504.11343) have it for rewards
    that are verified: failures are dropped. Not a baseline: its expectation is not 0. A group may
    have one completion.
    """
    values, present = judged(rewards)
    return (present & (values > threshold)).astype(values.dtype)


def leave_prompt_out(rewards: jax.Array) -> jax.Array:
    """A_{n,i} = r_{n,i} - mean of the rewards of the other prompts: a baseline for one completion.

    Source: the baseline of Kool et al. (2019) over prompts in place of samples. Unbiased: the
    others are independent of the completion. It does not know how hard a prompt is, so that its
    variance is at least that of the mean rewards between prompts. Depends on the batch: compute it
    before cutting microbatches.

    Args:
      rewards: [N, G], N >= 2, G >= 1.

    Returns:
      [N, G].

    Raises:
      ValueError: fewer than two prompts.

    Example:
      >>> leave_prompt_out(jnp.array([[1.0], [0.0], [0.0]]))
      Array([[ 1. ],
             [-0.5],
             [-0.5]], dtype=float32)
    """
    if jnp.ndim(rewards) != 2 or rewards.shape[0] < 2 or rewards.shape[1] < 1:
        raise ValueError(f"rewards must be [N, G] with N >= 2, got {list(jnp.shape(rewards))}")
    values, present = judged(rewards)
    known = jnp.any(present, axis=-1, keepdims=True)
    each = masked_mean(values, present)
    others = masked_count(known, values.dtype, 0) - known.astype(values.dtype)
    baseline = (masked_sum(each, known, 0) - each) / jnp.maximum(others, 1)
    return jnp.where(present, values - baseline, 0)


def above_baseline(rewards: jax.Array, *, baseline: Scalar) -> jax.Array:
    """A_i = r_i - b, b a number that was known before. [..., G] -> [..., G].

    Source: Williams (1992). Unbiased if b does not depend on these completions, as a running mean
    of the rewards before them (`running_mean`) does not; after they have entered it, it does.
    """
    values, present = judged(rewards)
    return jnp.where(present, values - baseline, 0)


class RunningMean(NamedTuple):
    """An exponential mean, begun at nothing: `mean` of what was seen, which weighs `weight`."""

    mean: float
    weight: float


NOTHING_SEEN = RunningMean(mean=0.0, weight=0.0)


def running_mean(before: RunningMean, value: float, *, rate: float) -> RunningMean:
    """m' = ((1 - a) w m + a x) / w', w' = (1 - a) w + a: the first value counts fully.

    Source: the bias correction of Adam (Kingma and Ba 2015, arXiv:1412.6980), for the mean of
    rewards.
    """
    weight = (1 - rate) * before.weight + rate
    total = (1 - rate) * before.weight * before.mean + rate * value
    return RunningMean(total / weight, weight)


def positive_part(rewards: jax.Array) -> jax.Array:
    """max(r_i - mean(r), 0): imitate the better half, the rarer the more. [..., G] -> [..., G].

    For rewards 0 and 1, 1 - p on successes. Not a baseline: its expectation is not 0. Its gradient
    on fixed samples pulls towards them, however often they are used, and pushes away from nothing.
    """
    return jnp.maximum(centered(rewards), 0)


# Of sets of completions: maximum likelihood, Pass@k and the best of k.


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
    check_at_least(1, k=k)
    values, present = judged(rewards, 2)
    success = present & (values > 0)
    n, successes = masked_count(present, values.dtype), masked_count(success, values.dtype)
    place = jnp.cumsum(jnp.ones_like(values), axis=-1) - 1
    # 1 - R is a product over the successes: log-gammas of large groups would cancel.
    factors = jnp.log1p(-jnp.minimum(k / jnp.maximum(n - place, 1), 1))
    log_failed = jnp.sum(jnp.where(place < successes, factors, 0), axis=-1, keepdims=True)
    failed, mean = jnp.exp(log_failed), -jnp.expm1(log_failed)
    mixed = (mean > 1e-6) & (failed > 1e-6)
    std = jnp.sqrt(jnp.where(mixed, mean * failed, 1))
    others = failed * successes / jnp.maximum(n - successes, 1)  # E of a failure is R - this
    credit = jnp.where(success, failed, -others) / std
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
    check_at_least(1, k=k)
    values, present = judged(rewards, 2)
    # Measured from the best: what shares are rounded by would be multiplied by the rewards' level.
    best = jnp.max(jnp.where(present, values, -jnp.inf), axis=-1, keepdims=True)
    values = jnp.where(present, values - best, 0)
    n = masked_count(present, values.dtype)
    order = jnp.argsort(jnp.argsort(jnp.where(present, values, jnp.inf), axis=-1), axis=-1)
    place, left_out = order[..., None, :], order[..., :, None]
    other = present[..., None, :] & (place != left_out)
    # [..., i, j]: the rank of j where i is left out.
    rank = (place - (left_out < place).astype(place.dtype)).astype(values.dtype)
    theirs, mine, rest = values[..., None, :], values[..., :, None], n[..., None] - 1
    best_with = _share_of_sets((rank, k - 2), (rest, k - 1))
    best_without = _share_of_sets((rank, k - 1), (rest, k))
    with_i = jnp.sum(jnp.where(other, best_with * jnp.maximum(mine, theirs), 0), axis=-1)
    without_i = jnp.sum(jnp.where(other, best_without * theirs, 0), axis=-1)
    credit = k * (jnp.where(k < 2, values, with_i) - without_i)
    enough = jnp.where(k >= rewards.shape[-1], jnp.nan, 1.0)
    return enough * jnp.where(present & (n > k), credit, 0)


def _share_of_sets(some: tuple[jax.Array, Scalar], of: tuple[jax.Array, Scalar]) -> jax.Array:
    """C(n, k) / C(m, l) of whole numbers, each pair (of what, how many): in logs, none overflows.

    0 where there is no such k of n; where there are no l of m, C(m, l) counts as 1.
    """
    return jnp.exp(_log_choose(*some) - jnp.maximum(_log_choose(*of), 0))


def _log_choose(n: jax.Array, k: Scalar) -> jax.Array:
    """log C(n, k) of whole numbers, -inf where k < 0 or k > n."""
    there = (k >= 0) & (n >= k)
    n, k = jnp.where(there, n, 0), jnp.where(there, k, 0)
    return jnp.where(there, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -jnp.inf)
