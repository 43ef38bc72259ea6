"""Losses that look at a divergence of the policies where others look at the ratio."""

from functools import partial

import jax
import jax.numpy as jnp

from ogrpo.core import gates
from ogrpo.core.divergences import KlFn, binary_kl, binary_tv
from ogrpo.core.objectives.base import TokenBatch, gated, masked_batch, scored
from ogrpo.core.ratios import log_ratio
from ogrpo.core.surrogates import Scalar


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
