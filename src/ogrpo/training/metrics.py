"""What an update says of itself: how far apart the policies are, and what the clip did."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.diagnostics import clip_totals, diagnose, ess_from_moments
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import exp_ratio, log_ratio

Metrics = dict[str, Array]
Knobs = dict[str, Array]
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
      kl: per token, policy against behaviour. ess: effective share of the tokens. mismatch: mean
      |log pi_k - log alpha|. clipped/low, clipped/high, clipped: shares of the tokens that carry
      loss whose gradient the clip removed. ratio/max, entropy, kl/ref.
    """
    everything = tokens._replace(mask=drawn)
    totals = diagnose(output.log_probs, everything)
    ratio = exp_ratio(log_ratio(output.log_probs, tokens.behavior_log_probs, drawn))
    drawn_tokens = totals["ratio"].count
    ess = ess_from_moments(totals["ratio"], totals["ratio_squared"])
    return {
        "kl": mean(totals["kl_behavior"]),
        "kl/ref": mean(totals["kl_ref"]),
        "ess": ess / jnp.maximum(drawn_tokens, 1.0),
        "mismatch": mean(totals["mismatch"]),
        "ratio/max": jnp.max(jnp.where(drawn, ratio, 0.0)),
        "entropy": mean(token_total(output.entropy, drawn)),
        **({} if center_fn is None else _clipped(ratio, tokens, knobs, center_fn(everything))),
    }


def _clipped(ratio: Array, tokens: TokenBatch, knobs: Knobs, center: Array) -> Metrics:
    band = {"eps_low": knobs["eps_low"], "eps_high": knobs["eps_high"], "center": center}
    low, high = (mean(t) for t in clip_totals(ratio, tokens.advantages, tokens.mask, **band))
    return {"clipped/low": low, "clipped/high": high, "clipped": low + high}
