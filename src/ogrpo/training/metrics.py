"""What an update says of itself: how far apart the policies are, and what the clip did."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.diagnostics import clip_totals, diagnose, ess_from_moments, ratio_quantiles
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import exp_ratio, log_ratio
from ogrpo.core.weights import chi_square, ess_fraction

Metrics = dict[str, Array]
Knobs = dict[str, Any]
TAIL = 0.99
MetricsFn = Callable[["PolicyOutput", TokenBatch, Array, Knobs], Metrics]


class PolicyOutput(NamedTuple):
    """What the policy says of a batch's completion tokens."""

    log_probs: Array  # float32 [N, G, T]
    entropy: Array  # float32 [N, G, T], nats


def summarize(
    output: PolicyOutput,
    tokens: TokenBatch,
    drawn: Array,
    knobs: Knobs,
    *,
    center_fn: Callable[[TokenBatch], Array] | None,
) -> Metrics:
    """Scalars over every drawn token, those of groups that carry no loss included.

    Args:
      output: log-probs and entropies, [N, G, T].
      tokens: the batch as the objective saw it.
      drawn: bool [N, G, T], True on every sampled token.
      knobs: `eps_low` and `eps_high` where the objective clips.
      center_fn: the centre of the interval that token ratios are clipped to; None where the
        objective does no such thing, and `clipped` is not reported.

    Returns:
      kl: KL(mu||pi) per token, by k3. kl/behavior: KL(pi||mu) per token. ess, ess/sequence:
      effective share of the tokens and of the sequences. chi_square: of the sequences. mismatch:
      mean |log pi_k - log alpha|. clipped/low, clipped/high, clipped: shares of the tokens that
      carry loss whose gradient the clip removed. ratio/max, ratio/tail: largest token ratio and
      99 % quantile. entropy, kl/ref.
    """
    everything = tokens._replace(mask=drawn)
    totals = diagnose(output.log_probs, everything)
    log_ratios = log_ratio(output.log_probs, tokens.behavior_log_probs, drawn)
    ratio = exp_ratio(log_ratios)
    sequences, present = jnp.sum(log_ratios, axis=-1).ravel(), jnp.any(drawn, axis=-1).ravel()
    drawn_tokens = totals["ratio"].count
    ess = ess_from_moments(totals["ratio"], totals["ratio_squared"])
    return {
        "kl": mean(totals["kl_behavior"]),
        "kl/behavior": mean(totals["kl"]),
        "kl/ref": mean(totals["kl_ref"]),
        "ess": jnp.where(drawn_tokens == 0, 1.0, ess / jnp.maximum(drawn_tokens, 1.0)),
        "ess/sequence": jnp.where(jnp.any(present), ess_fraction(sequences, present), 1.0),
        "chi_square": jnp.where(jnp.any(present), chi_square(sequences, present), 0.0),
        "mismatch": mean(totals["mismatch"]),
        "ratio/max": jnp.max(jnp.where(drawn, ratio, 0.0)),
        "ratio/tail": jnp.where(
            jnp.any(drawn), ratio_quantiles(ratio.ravel(), drawn.ravel(), jnp.array([TAIL]))[0], 1.0
        ),
        "entropy": mean(token_total(output.entropy, drawn)),
        **({} if center_fn is None else _clipped(ratio, tokens, knobs, center_fn(everything))),
    }


def _clipped(ratio: Array, tokens: TokenBatch, knobs: Knobs, center: Array) -> Metrics:
    band = {"eps_low": knobs["eps_low"], "eps_high": knobs["eps_high"], "center": center}
    low, high = (mean(t) for t in clip_totals(ratio, tokens.advantages, tokens.mask, **band))
    return {"clipped/low": low, "clipped/high": high, "clipped": low + high}
