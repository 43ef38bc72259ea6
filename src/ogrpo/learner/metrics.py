"""Metrics of an update: how far apart the policies are, and what the clip did."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ogrpo.batch import PolicyOutput
from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.diagnostics import diagnose, ess_from_moments, ratio_quantiles, silenced_totals
from ogrpo.core.objectives import TokenBatch, TokenLossFn
from ogrpo.core.ratios import exp_ratio, log_ratio
from ogrpo.core.weights import chi_square, ess_fraction

Metrics = dict[str, Array]
TAIL = 0.99
HEADS = ("lm_head", "embed_tokens")
"""The output head among a decoder's parameters: its own, or the embedding that it shares."""
MetricsFn = Callable[[PolicyOutput[Array], TokenBatch, Array, TokenLossFn], Metrics]


def summarize(
    output: PolicyOutput[Array], tokens: TokenBatch, drawn: Array, loss_fn: TokenLossFn
) -> Metrics:
    """Computes scalars over every token that the policy wrote, groups without loss included.

    Args:
      output: log-probs and entropies, [N, G, T].
      tokens: the batch as the objective saw it.
      drawn: bool [N, G, T], True on every sampled token that the loss mask leaves in.
      loss_fn: `(log_probs, tokens) -> [N, G, T]`, the method's loss without its KL term.

    Returns:
      kl/mu_pi: KL(mu||pi) per token, by k3. kl/pi_mu: KL(pi||mu) per token. kl/pi_ref: k3 without
      a weight, KL(pi||ref) where pi = mu. ess, ess/sequence: effective share of the tokens and of
      the sequences. chi_square: of the sequences. mismatch: mean |log pi_k - log mu|. clipped/low,
      clipped/high: shares of the tokens that carry loss whose gradient the method removed, those of
      negative and those of positive advantage; clipped: both together. ratio/mean: mean token
      ratio, near 1 where the sampler could draw all that the policy could. ratio/max, ratio/tail:
      largest token ratio and 99 % quantile. entropy.
    """
    everything = tokens._replace(mask=drawn)
    totals = diagnose(output.log_probs, everything)
    log_ratios = log_ratio(output.log_probs, tokens.behavior_log_probs, drawn)
    ratio = exp_ratio(log_ratios)
    sequences, present = jnp.sum(log_ratios, axis=-1).ravel(), jnp.any(drawn, axis=-1).ravel()
    drawn_tokens = totals["ratio"].count
    ess = ess_from_moments(totals["ratio"], totals["ratio_squared"])
    silenced = silenced_totals(output.log_probs, tokens, loss_fn=loss_fn)
    low, high = (mean(total) for total in silenced)
    return {
        "kl/mu_pi": mean(totals["kl_mu_pi"]),
        "kl/pi_mu": mean(totals["kl_pi_mu"]),
        "kl/pi_ref": mean(totals["kl_pi_ref"]),
        "ess": jnp.where(drawn_tokens == 0, 1.0, ess / jnp.maximum(drawn_tokens, 1.0)),
        "ess/sequence": jnp.where(jnp.any(present), ess_fraction(sequences, present), 1.0),
        "chi_square": jnp.where(jnp.any(present), chi_square(sequences, present), 0.0),
        "mismatch": mean(totals["mismatch"]),
        "ratio/mean": jnp.where(drawn_tokens == 0, 1.0, mean(totals["ratio"])),
        "ratio/max": jnp.max(jnp.where(drawn, ratio, 0.0)),
        "ratio/tail": jnp.where(
            jnp.any(drawn), ratio_quantiles(ratio.ravel(), drawn.ravel(), jnp.array([TAIL]))[0], 1.0
        ),
        "entropy": mean(token_total(output.entropy, drawn)),
        "clipped/low": low,
        "clipped/high": high,
        "clipped": low + high,
    }


def head_norm(grads: Any) -> Metrics:
    """Returns the norm of the gradient of the output head, where it is trained.

    Where the head is the embedding (tied), of all that the embedding gets.
    """
    trained = grads if isinstance(grads, dict) else {}
    heads = [trained[name] for name in HEADS if name in trained]
    return {"grad_norm/head": optax.tree.norm(heads[0])} if heads else {}
