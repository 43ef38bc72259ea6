"""Losses that look at a divergence of the policies where others look at the ratio."""

from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import gates
from ogrpo.core.checks import check_nonnegative, needed
from ogrpo.core.divergences import KlFn, binary_kl, binary_tv
from ogrpo.core.masked import gate, masked_count, masked_mean
from ogrpo.core.objectives.base import TokenBatch, gated, masked_batch, scored, token_loss
from ogrpo.core.ratios import MAX_LOG_RATIO, log_ratio
from ogrpo.core.surrogates import Scalar, ratio_surrogate


def m2po(
    log_probs: jax.Array, batch: TokenBatch, *, threshold: Scalar = 0.04, beta: Scalar = 0.0
) -> jax.Array:
    """M2PO: -M rho A; M drops the largest D^2 until the rest's mean is at most the threshold.

    Only steps that lead outward (A > 0, rho > 1 or A < 0, rho < 1) are ranked and dropped. Source:
    Zheng et al. (2025, arXiv:2510.01161), algorithm 1; reduces with `token_mean` over all tokens.
    Looks at the whole array: microbatches do not add up to the batch.
    """
    log_probs, batch = masked_batch(log_probs, batch)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    outward = jnp.sign(delta) * jnp.sign(batch.advantages) > 0
    ranked = gates.second_moment_mask(delta, batch.mask & outward, threshold=threshold)
    kept = jnp.where(outward, ranked, 1)
    return gated(log_probs, batch, lambda *_: kept, beta=beta)


def dppo_tv(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.15,
    high: Scalar = 0.15,
    cap: Scalar = 10.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """DPPO-TV: -sg(M min(rho, cap)) A log pi, M shut where a step leads outward and |pi - mu| is
    beyond high (A > 0) or low (A < 0).

    Source: Qi et al. (2026, arXiv:2602.04879), binary TV; reduces with `token_mean`.
    """
    divergence = _between(binary_tv, log_probs, batch)
    return _fenced(log_probs, batch, divergence, low=low, high=high, cap=cap, beta=beta)


def dppo_kl(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.05,
    high: Scalar = 0.05,
    cap: Scalar = 10.0,
    beta: Scalar = 0.0,
) -> jax.Array:
    """DPPO-KL: as `dppo_tv`, with KL(mu||pi) of "this token or another" for the divergence.

    Source: Qi et al. (2026, arXiv:2602.04879), binary KL; reduces with `token_mean`.
    """
    divergence = _between(binary_kl, log_probs, batch)
    return _fenced(log_probs, batch, divergence, low=low, high=high, cap=cap, beta=beta)


def prime_rl(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    low: Scalar = 0.2,
    high: Scalar = 0.2,
    coef: Scalar = 1e-3,
) -> jax.Array:
    """-M rho A + coef D^2: DPPO-TV's mask on the ratio, and a pull towards the sampler.

    Source: prime-rl's default loss (August 2026), after arXiv:2602.04879 and 2602.02276; the
    advantages are centred, and it reduces with `token_mean`. Infinite for infinite D.
    """
    fence = partial(
        gates.divergence_gate,
        divergence=_between(binary_tv, log_probs, batch),
        low=low,
        high=high,
    )
    return gated(log_probs, batch, fence) + _pull(log_probs, batch, coef)


def distill(
    log_probs: jax.Array, batch: TokenBatch, *, low: Scalar = 0.2, coef: Scalar = 1e-3
) -> jax.Array:
    """-M rho sg(log ref - log pi) + coef D^2: the reverse KL to a teacher, the reference.

    M is shut where mu - pi of the token is beyond low. The advantages are not read. Its mean over
    samples of pi has the gradient of KL(pi||ref) by token. Source: on-policy distillation (Lu et
    al. 2025, Thinking Machines); the mask and the pull are prime-rl's (August 2026).
    """
    log_probs, batch = masked_batch(log_probs, batch)
    ref = needed(batch.ref_log_probs, "ref_log_probs")
    gain = jax.lax.stop_gradient(ref - log_probs)
    fallen = jnp.exp(batch.behavior_log_probs) - jnp.exp(log_probs)
    kept = gate(fallen > low, fallen)
    teach = batch._replace(advantages=gain)
    return gated(log_probs, teach, lambda *_: kept) + _pull(log_probs, batch, coef)


def kl_cov(
    log_probs: jax.Array, batch: TokenBatch, *, share: Scalar = 2e-4, coef: Scalar = 1.0
) -> jax.Array:
    """-rho A + coef |D| on the share of tokens whose (A - mean A)(log pi - mean log pi) is largest.

    Source: KL-Cov (Cui et al. 2025, arXiv:2505.22617), which slows the fall of the entropy where it
    falls fastest; at least one token. Looks at the whole array: microbatches do not add up.
    """
    check_nonnegative(share=share, coef=coef)
    log_probs, batch = masked_batch(log_probs, batch)
    held = jax.lax.stop_gradient(log_probs)
    off = (batch.advantages, held)
    parts = [jnp.where(batch.mask, x - masked_mean(x, batch.mask, None), 0) for x in off]
    covariance = jnp.where(batch.mask, parts[0] * parts[1], -jnp.inf).ravel()
    rank = jnp.argsort(jnp.argsort(-covariance)).reshape(held.shape).astype(held.dtype)
    most = jnp.maximum(jnp.floor(share * masked_count(batch.mask, held.dtype, None)), 1)
    distance = jnp.abs(log_ratio(log_probs, batch.behavior_log_probs, batch.mask))
    pull = jnp.where(batch.mask & (rank < most), coef * distance, 0)
    return token_loss(log_probs, batch, surrogate_fn=ratio_surrogate) + pull


def m2po_released(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    threshold: Scalar = 0.04,
    eps_low: Scalar = 0.3,
    eps_high: Scalar = 0.5,
) -> jax.Array:
    """M2PO as its authors released it: PPO's clip at e^-+tau, mean min(D^2, tau^2) = threshold.

    The interval is never narrower than [1 - eps_low, 1 + eps_high]. Source: the released code of
    arXiv:2510.01161; its algorithm 1 is `m2po`. Looks at the whole array.
    """
    check_nonnegative(threshold=threshold, eps_low=eps_low, eps_high=eps_high)
    log_probs, batch = masked_batch(log_probs, batch)
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    width = jnp.sqrt(_capped_square(jax.lax.stop_gradient(delta), batch.mask, threshold))
    low = jnp.minimum(jnp.exp(-width), 1 - eps_low)
    high = jnp.maximum(jnp.exp(jnp.minimum(width, MAX_LOG_RATIO)), 1 + eps_high)

    def clip(ratio: jax.Array, advantages: jax.Array) -> jax.Array:
        return jnp.minimum(ratio * advantages, jnp.clip(ratio, low, high) * advantages)

    return token_loss(log_probs, batch, surrogate_fn=clip)


def _capped_square(delta: jax.Array, mask: jax.Array, budget: Scalar) -> jax.Array:
    """The c with mean min(D^2, c) = budget over the tokens; infinite if their mean is below it."""
    squares = jnp.sort(jnp.where(mask, delta**2, jnp.inf).ravel())
    n, before = masked_count(mask, delta.dtype, None), jnp.arange(squares.size, dtype=delta.dtype)
    kept = jnp.where(before < n, squares, 0)
    earlier = jnp.cumsum(kept) - kept
    left = jnp.maximum(n - before, 1)
    reached = (earlier + left * kept >= n * budget) & (before < n)
    first = jnp.argmax(reached)
    cap = (n * budget - earlier[first]) / left[first]
    return jnp.where(jnp.any(reached), cap, jnp.inf)


def _pull(log_probs: jax.Array, batch: TokenBatch, coef: Scalar) -> jax.Array:
    """coef D^2 of each token, 0 where masked."""
    check_nonnegative(coef=coef)
    return coef * log_ratio(log_probs, batch.behavior_log_probs, batch.mask) ** 2


def _fenced(
    log_probs: jax.Array,
    batch: TokenBatch,
    divergence: jax.Array,
    *,
    low: Scalar,
    high: Scalar,
    cap: Scalar,
    beta: Scalar,
) -> jax.Array:
    fence = partial(gates.divergence_gate, divergence=divergence, low=low, high=high)
    weight = partial(gates.clipped_gate, low=0.0, high=cap)
    gate = partial(gates.both_gates, gate_fn=fence, and_gate_fn=weight)
    return scored(log_probs, batch, gate, beta=beta)


def _between(divergence_fn: KlFn, log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    log_probs, batch = masked_batch(log_probs, batch)
    return divergence_fn(log_probs, batch.behavior_log_probs)
