"""Signals that say when the data at hand are used up, their limits, and which one binds.

Each signal is divided by its limit; the data are used up when the largest quotient reaches 1, and
that signal is named. The effective sample size alone does not warn: it can stay near 1 while a run
collapses. So it is one of four.

    kl         KL(pi||mu), nats a token, of the batch drawn
    ess        lost effective sample size, 1 - ESS/n of the tokens
    tail       log of the 99 % quantile of the token ratios
    staleness  chi^2 of the sequences against 1 + m/N: `m` stale samples beside `N` fresh ones lower
               the variance of a plain mean iff sigma_1^2/sigma_0^2 < 2 + m/N
               (`ogrpo.core.bounds.stale_samples_help`), the ratio of variances taken as 1 + chi^2;
               the loop takes m/N as the draws before this one in the step, which is rough: even
               the first draw from a large buffer holds stored samples
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from ogrpo.config.schedule import ReuseLimits


class UseVerdict(NamedTuple):
    """The signal nearest to its limit, and the quotient of the two: used up at 1."""

    signal: str
    use: float


def judge_data(
    metrics: Mapping[str, float], limits: ReuseLimits, *, stale_per_fresh: float
) -> UseVerdict:
    """Returns the binding signal among an update's metrics.

    Args:
      metrics: `kl/pi_mu`, `ess`, `ratio/tail` and `chi_square`, as an update reports them.
      limits: what each may reach.
      stale_per_fresh: m/N, uses of stored samples for each fresh one.
    """
    uses = {
        "kl": metrics["kl/pi_mu"] / limits.kl,
        "ess": (1 - metrics["ess"]) / limits.ess,
        "tail": math.log(max(metrics["ratio/tail"], 1.0)) / limits.tail,
    }
    if limits.staleness:
        uses["staleness"] = metrics["chi_square"] / (1 + stale_per_fresh)
    finite = {name: use if math.isfinite(use) else math.inf for name, use in uses.items()}
    signal = max(finite, key=lambda name: finite[name])
    return UseVerdict(signal, finite[signal])


def next_clip_scale(scale: float, verdict: UseVerdict, limits: ReuseLimits) -> float:
    """Returns a narrower clip where the data were used up, else a wider one, by `clip_step`.

    The rule of `ogrpo.core.trust_region.adaptive_clip`, on the combined signal.
    """
    step = math.exp(-limits.clip_step if verdict.use >= 1 else limits.clip_step)
    return min(max(scale * step, 1 / limits.clip_range), limits.clip_range)
