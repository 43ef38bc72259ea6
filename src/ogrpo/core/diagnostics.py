"""Beside the loss: how far the policies are apart, and what the clip did.

`diagnose` returns totals, which add up over microbatches and devices like the loss itself.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.aggregate import Total, token_total
from ogrpo.core.checks import check_masked, needed
from ogrpo.core.divergences import behavior_kl, k3
from ogrpo.core.objectives import TokenBatch, TokenLossFn, drift
from ogrpo.core.ratios import log_ratio, moment_ratio


def silenced_totals(
    log_probs: jax.Array, batch: TokenBatch, *, loss_fn: TokenLossFn
) -> tuple[Total, Total]:
    """Tokens of advantage not 0 on which the loss has no gradient: what a method's clip removed.

    For a clip of token ratios: rho < r' - eps_low with A < 0, and rho > r' + eps_high with A > 0.

    Args:
      log_probs: [..., T] log pi.
      batch: [..., T].
      loss_fn: `(log_probs, batch) -> [..., T]`, without a KL term.

    Returns:
      Token totals, those of negative advantage and those of positive.
    """
    losses, back = jax.vjp(lambda x: loss_fn(x, batch), log_probs)
    silent = back(jnp.ones_like(losses))[0] == 0
    sides = (silent & (batch.advantages < 0), silent & (batch.advantages > 0))
    low, high = (token_total(side.astype(losses.dtype), batch.mask) for side in sides)
    return low, high


def ratio_quantiles(ratio: jax.Array, mask: jax.Array, quantiles: jax.Array) -> jax.Array:
    """Quantiles of the kept ratios: [..., T], bool [..., T], [Q] -> [Q].

    NaN if none is kept, or a NaN is.
    """
    check_masked("T", mask, ratio=ratio)
    kept = jnp.nanquantile(jnp.where(mask, ratio, jnp.nan), quantiles)
    return jnp.where(jnp.any(jnp.isnan(ratio) & mask), jnp.nan, kept)


def ess_from_moments(first: Total, second: Total) -> jax.Array:
    """Token-level effective sample size from the totals of rho and rho^2, as `diagnose` has them.

    (sum rho)^2 / sum rho^2: the moments add up over devices, an effective sample size does not.
    Finite for up to 3e10 tokens of `moment_ratio`.
    """
    return first.total**2 / jnp.where(second.total == 0, 1, second.total)


def diagnose(log_probs: jax.Array, batch: TokenBatch) -> dict[str, Total]:
    """Token totals of the distances between the four policies.

    Args:
      log_probs: [..., T] log pi_theta.
      batch: the rest, [..., T].

    Returns:
      ratio, ratio_squared: of pi/mu, at most exp(20) (`moment_ratio`), for `ess_from_moments`.
      kl_pi_mu: KL(pi||mu) by `behavior_kl`. kl_mu_pi: KL(mu||pi) by k3. kl_pi_ref: k3 of mu's
      draws, KL(pi||ref) only where pi = mu. mismatch: |log pi_k - log mu|, sampler against trainer
      plus staleness. entropy: -log pi of the drawn tokens, which estimates it on policy only
      (exact: `ogrpo.core.divergences.entropy`). advantage, advantage_squared.
    """
    delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    ratio = moment_ratio(delta)
    values = {
        "ratio": ratio,
        "ratio_squared": ratio**2,
        "kl_pi_mu": behavior_kl(delta),
        "kl_mu_pi": k3(batch.behavior_log_probs, log_probs),
        "kl_pi_ref": k3(log_probs, needed(batch.ref_log_probs, "ref_log_probs")),
        "mismatch": jnp.abs(drift(batch)),
        "entropy": -log_probs,
        "advantage": batch.advantages,
        "advantage_squared": batch.advantages**2,
    }
    return {name: token_total(value, batch.mask) for name, value in values.items()}
