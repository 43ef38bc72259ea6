"""Gates `(ratio, advantages) -> coefficient`, per token [..., T].

A gate says which tokens may push, and how hard. It is held constant by whoever applies it (`score`,
`gated`): its gradient is never taken. Where the ratio is NaN so is the gate, as a comparison with
NaN would quietly keep or drop the token. Gates multiply. What looks at whole sequences or at the
whole batch is called a mask, and takes the log-ratios and the mask of the tokens beside.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_axes, check_masked, check_nonnegative
from ogrpo.core.divergences import k3
from ogrpo.core.masked import gate, masked_mean, masked_sum
from ogrpo.core.ratios import exp_ratio
from ogrpo.core.surrogates import GateFn


def open_gate(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
    """g = 1: everything passes. [..., T] -> [..., T]."""
    check_axes("T", ratio=ratio, advantages=advantages)
    return gate(jnp.zeros_like(ratio, bool), ratio)


def one_side_gate(
    ratio: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar
) -> jax.Array:
    """g = 1[(r <= 1 + eps_high and a >= 0) or (r >= 1 - eps_low and a <= 0)].

    Source: REC-OneSide (Yao et al. 2025, arXiv:2509.24203). With g r as the gate of `score`, the
    gradient is the PPO clip's away from its kinks.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      eps_low: width below 1, >= 0.
      eps_high: width above 1, >= 0.

    Returns:
      [..., T] of 0 and 1.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    check_axes("T", ratio=ratio, advantages=advantages)
    rising = (ratio > 1 + eps_high) & (advantages > 0)
    falling = (ratio < 1 - eps_low) & (advantages < 0)
    return gate(rising | falling, ratio)


def two_side_gate(
    ratio: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar
) -> jax.Array:
    """g = 1[1 - eps_low <= r <= 1 + eps_high], whatever the sign of a.

    Source: REC-TwoSide (Yao et al. 2025, arXiv:2509.24203). Args and Returns: as `one_side_gate`.
    """
    check_nonnegative(eps_low=eps_low, eps_high=eps_high)
    return band_gate(ratio, advantages, low=1 - eps_low, high=1 + eps_high)


def ring_gate(
    ratio: jax.Array,
    advantages: jax.Array,
    *,
    eps_low: Scalar,
    eps_high: Scalar,
    outer_low: Scalar,
    outer_high: Scalar,
) -> jax.Array:
    """g = two-side, or (a >= 0 and r <= 1 - outer_low), or (a <= 0 and r >= 1 + outer_high).

    Source: REC-Ring (Yao et al. 2025, arXiv:2509.24203): far outside, tokens that would come back
    pass again.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      eps_low: inner width below 1, >= 0.
      eps_high: inner width above 1, >= 0.
      outer_low: outer distance below 1, >= eps_low.
      outer_high: outer distance above 1, >= eps_high.

    Returns:
      [..., T] of 0 and 1.
    """
    check_nonnegative(outer_low=outer_low, outer_high=outer_high)
    inner = two_side_gate(ratio, advantages, eps_low=eps_low, eps_high=eps_high)
    low = (advantages >= 0) & (ratio <= 1 - outer_low)
    high = (advantages <= 0) & (ratio >= 1 + outer_high)
    return jnp.where(low | high, 1, inner)


def band_gate(ratio: jax.Array, advantages: jax.Array, *, low: Scalar, high: Scalar) -> jax.Array:
    """g = 1[low <= r <= high], bounds absolute.

    Source: sPPO (Vaswani et al. 2022, arXiv:2108.05828), with 1/1.3 and 1.3. [..., T] -> [..., T]
    of 0 and 1.
    """
    check_axes("T", ratio=ratio, advantages=advantages)
    return gate((ratio < low) | (ratio > high), ratio)


def ratio_gate(ratio: jax.Array, advantages: jax.Array, *, gate_fn: GateFn) -> jax.Array:
    """r g(r, a): the importance-weighted form of another gate. [..., T] -> [..., T]."""
    return ratio * gate_fn(ratio, advantages)


def clipped_gate(
    ratio: jax.Array, advantages: jax.Array, *, low: Scalar, high: Scalar
) -> jax.Array:
    """g = clip(r, low, high), bounds absolute: no token is silenced.

    Source: CISPO (MiniMax-M1, 2025, arXiv:2506.13585). [..., T] -> [..., T].
    """
    check_nonnegative(low=low, high=high)
    check_axes("T", ratio=ratio, advantages=advantages)
    return jnp.clip(ratio, low, high)


def tapered_gate(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
    """g = min(r, 1) where a <= 0, else 1: negatives fade as the policy leaves them.

    Source: TOPR (Le Roux et al. 2025, arXiv:2503.14286), whose ratio is the sequence's. Bias: the
    positives are imitated unweighted. [..., T] -> [..., T].
    """
    check_axes("T", ratio=ratio, advantages=advantages)
    return jnp.where(advantages > 0, open_gate(ratio, advantages), jnp.minimum(ratio, 1))


def divergence_gate(
    ratio: jax.Array, advantages: jax.Array, *, divergence: jax.Array, low: Scalar, high: Scalar
) -> jax.Array:
    """g = 0 where the step leads further out: a > 0, r > 1, D > high or a < 0, r < 1, D > low.

    Source: DPPO (Qi et al. 2026, arXiv:2602.04879): the divergence of the token's distributions,
    `binary_tv`, `binary_kl` or exact, replaces the distance of the ratio from 1.

    Args:
      ratio: [..., T].
      advantages: [..., T].
      divergence: [..., T], >= 0.
      low: largest divergence of a token that is to become rarer, >= 0.
      high: of one that is to become more frequent, >= 0.

    Returns:
      [..., T] of 0 and 1.
    """
    check_axes("T", ratio=ratio, advantages=advantages, divergence=divergence)
    check_nonnegative(low=low, high=high)
    rising = (advantages > 0) & (ratio > 1) & (divergence > high)
    falling = (advantages < 0) & (ratio < 1) & (divergence > low)
    witness = jnp.where(jnp.isnan(divergence), divergence, ratio)
    return gate(rising | falling, witness)


def second_moment_mask(log_ratio: jax.Array, mask: jax.Array, *, threshold: Scalar) -> jax.Array:
    """Keep the largest set of smallest D^2 whose mean is at most the threshold, over *all* axes.

    Source: M2PO (Zheng et al. 2025, arXiv:2510.01161). A property of the whole
    array: a microbatch gates differently from the batch.

    Args:
      log_ratio: [..., T].
      mask: [..., T] bool; only these tokens are ranked.
      threshold: on the mean of D^2 over the kept, >= 0.

    Returns:
      [..., T] of 0 and 1; 0 where masked.
    """
    check_masked("T", mask, log_ratio=log_ratio)
    check_nonnegative(threshold=threshold)
    squares = jnp.where(mask, log_ratio**2, jnp.inf).ravel()
    order = jnp.argsort(squares)
    running = jnp.cumsum(squares[order]) / jnp.arange(1, squares.size + 1, dtype=squares.dtype)
    kept = jnp.zeros_like(squares, bool).at[order].set(running <= threshold)
    return gate(~(mask & kept.reshape(log_ratio.shape)), jnp.where(mask, log_ratio, 0))


def off_policy_sequence_mask(
    log_ratio: jax.Array, advantages: jax.Array, mask: jax.Array, *, delta: Scalar
) -> jax.Array:
    """Keep a sequence if a >= 0 or mean_t(log mu - log pi) <= delta.

    Source: DeepSeek-V3.2 (2025, arXiv:2512.02556). The sampled mean estimates KL(mu||pi) per token
    without bias, of completions of one length.

    Args:
      log_ratio: [..., T] log pi - log mu.
      advantages: [..., T].
      mask: [..., T] bool.
      delta: in nats per token, >= 0.

    Returns:
      [..., T] of 0 and 1.
    """
    check_masked("T", mask, log_ratio=log_ratio, advantages=advantages)
    check_nonnegative(delta=delta)
    drift = -masked_mean(log_ratio, mask) * jnp.ones_like(log_ratio)
    return gate((advantages < 0) & (drift > delta), drift)


def token_mask(
    log_ratio: jax.Array, advantages: jax.Array, mask: jax.Array, *, low: Scalar, high: Scalar
) -> jax.Array:
    """g = 1[low <= rho_t <= high] of each token.

    Source: IcePop (Ling team 2025), the mask without the weight.

    Args:
      log_ratio: [..., T].
      advantages: [..., T], not looked at.
      mask: [..., T] bool.
      low: smallest ratio kept, >= 0.
      high: largest, >= 0.

    Returns:
      [..., T] of 0 and 1.
    """
    check_axes("T", log_ratio=log_ratio, advantages=advantages, mask=mask)
    check_nonnegative(low=low, high=high)
    ratio = exp_ratio(jnp.where(mask, log_ratio, 0))
    return gate((ratio < low) | (ratio > high), ratio)


def sequence_mask(
    log_ratio: jax.Array, advantages: jax.Array, mask: jax.Array, *, low: Scalar, high: Scalar
) -> jax.Array:
    """g = 1[low <= prod_t rho_t <= high] at every token of a completion.

    A cap c on the product of L ratios is a cap log(c) / L on their mean log-ratio: 3 is .0037 at
    300 tokens, less than engines differ, so that a cap that looks generous drops whole batches.

    Source: masked importance sampling by sequence, TRL's default with high = 3, without the weight.
    Args and Returns: as `token_mask`.
    """
    total = masked_sum(log_ratio, mask) * jnp.ones_like(log_ratio)
    return token_mask(total, advantages, mask, low=low, high=high)


def geometric_mask(
    log_ratio: jax.Array, advantages: jax.Array, mask: jax.Array, *, low: Scalar, high: Scalar
) -> jax.Array:
    """g = 1[low <= exp(mean_t D_t) <= high] at every token of a completion.

    Source: geometric sequence masking (Liu, Li et al. 2025). Biased; its strictness, unlike that of
    a product, does not grow with length. Args and Returns: as `token_mask`.
    """
    mean = masked_mean(log_ratio, mask) * jnp.ones_like(log_ratio)
    return token_mask(mean, advantages, mask, low=low, high=high)


def k3_mask(
    log_ratio: jax.Array, advantages: jax.Array, mask: jax.Array, *, limit: Scalar
) -> jax.Array:
    """g = 1[mean_t (rho_t - 1 - D_t) <= limit] at every token of a completion.

    Source: verl 0.9, `seq_mean_k3`; the sampled mean estimates KL(mu||pi) without bias, of
    completions of one length and where pi << mu, and unlike that of D has no cancelling.

    Args:
      log_ratio: [..., T].
      advantages: [..., T], not looked at.
      mask: [..., T] bool.
      limit: in nats per token, >= 0.

    Returns:
      [..., T] of 0 and 1.
    """
    check_masked("T", mask, log_ratio=log_ratio, advantages=advantages)
    check_nonnegative(limit=limit)
    terms = k3(jnp.zeros_like(log_ratio), log_ratio)
    drift = masked_mean(terms, mask) * jnp.ones_like(log_ratio)
    return gate(drift > limit, drift)


def top_entropy_mask(
    entropy: jax.Array, advantages: jax.Array, mask: jax.Array, *, share: Scalar
) -> jax.Array:
    """g = 1 where the entropy is at or above its (1 - share) quantile over *all* tokens.

    Source: Wang et al. (2025, arXiv:2506.01939), share .2: tokens at which the text forks. A
    property of the whole array: a microbatch gates differently from the batch.

    Args:
      entropy: [..., T] of pi's next-token distributions, nats.
      advantages: [..., T], not looked at.
      mask: [..., T] bool; only these tokens are ranked.
      share: of the tokens, in [0, 1].

    Returns:
      [..., T] of 0 and 1; 0 where masked.
    """
    check_masked("T", mask, entropy=entropy, advantages=advantages)
    check_nonnegative(share=share)
    least = jnp.nanquantile(jnp.where(mask, entropy, jnp.nan), 1 - share)
    return gate(~(mask & (entropy >= least)), jnp.where(mask, entropy, 0))
