"""Curves of a run as data: columns of records, and the charts that a script draws of them."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ogrpo.report.scores import MEAN_REWARD, PASS_AT_1, evaluations, reward_names, sampled, scores
from ogrpo.system.files import Record

SHARE = (0.0, 1.0)
FROM_ZERO = (0.0, None)
DIGITS = 6
"""Significant digits of a value on a page; metrics.jsonl has all of them."""
ABSCISSAE = ("completions", "step", "updates", "seconds")


class Chart(NamedTuple):
    """A chart of one run: a title, the limits of its axis, and key and label of each curve."""

    title: str
    limits: tuple[float | None, float | None]
    curves: tuple[tuple[str, str], ...]


CHARTS = (
    Chart("Training reward", (None, None), (("reward", "mean reward"),)),
    Chart(
        "Groups without variance, truncated completions (shares)",
        SHARE,
        (("zero_variance", "groups without variance"), ("truncated", "truncated completions")),
    ),
    Chart(
        "Effective sample size and clipping (shares of tokens)",
        SHARE,
        (("ess", "effective sample size"), ("clipped", "clipped")),
    ),
    Chart(
        "Divergence from the sampler, nats a token",
        FROM_ZERO,
        (("kl/mu_pi", "KL(μ‖π)"), ("mismatch", "|log π − log μ| before the step")),
    ),
    Chart("Entropy, nats a token", FROM_ZERO, (("entropy", "entropy"),)),
    Chart("Norm of the gradient", FROM_ZERO, (("grad_norm", "gradient"),)),
    Chart("Tokens of a completion", FROM_ZERO, (("length", "mean length"),)),
    Chart(
        "Certified improvement of each server period, reward",
        (None, None),
        (("certificate/mean", "estimate"), ("certificate/bound", "certified lower limit")),
    ),
    Chart(
        "Wall seconds of a step",
        FROM_ZERO,
        (
            *(("seconds/rollout", "rollout"), ("seconds/update", "update")),
            *(("seconds/sync", "copy of weights"), ("seconds/eval", "evaluation")),
        ),
    ),
    Chart(
        "Seconds of the last push of weights to servers",
        FROM_ZERO,
        (
            ("sync/write_seconds", "written by the trainer"),
            ("sync/paused_seconds", "servers paused, loading"),
            ("sync/prove_seconds", "proven by a probe"),
        ),
    ),
    Chart(
        "Servers: requests, peak of each step",
        FROM_ZERO,
        (("server/running", "running"), ("server/waiting", "waiting")),
    ),
    Chart("Servers: KV cache in use (share)", SHARE, (("server/kv_cache_usage", "peak"),)),
)


def charts(records: Sequence[Record]) -> list[Chart]:
    """Returns the charts that the records have something for, the held-out figures first."""
    evaluated = evaluations(records)
    figures = scores(evaluated)
    share = bool(figures) and figures[0].is_share
    prefix, name = (PASS_AT_1, "Pass@1") if share else (MEAN_REWARD, "mean reward")
    drawn = sampled(evaluated[0]) if evaluated else "sampled"
    heldout = Chart(
        f"Held-out {name}",
        SHARE if share else (None, None),
        ((f"{prefix}/greedy", "greedy"), (f"{prefix}/sampled", drawn)),
    )
    names = reward_names(evaluated)
    rewards = tuple((f"{MEAN_REWARD}/{each}/sampled", each) for each in names)
    several = [Chart("Held-out rewards, each by itself", (None, None), rewards)] * (len(names) > 1)
    known = {key for record in records for key, value in record.items() if value is not None}
    return [
        chart._replace(curves=tuple(curve for curve in chart.curves if curve[0] in known))
        for chart in (heldout, *several, *CHARTS)
        if any(key in known for key, _ in chart.curves)
    ]


def columns(records: Sequence[Record], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Returns figures of all records by key, rounded to `DIGITS`; held-out ones with intervals.

    `seconds` is the sum of all phases so far.
    """
    spent = accumulate(
        sum(value for key, value in r.items() if key.startswith("seconds/")) for r in records
    )
    rows = [{**r, "seconds": seconds} for r, seconds in zip(records, spent, strict=True)]
    heldout = [key for key in keys if key.startswith(("pass@", "heldout/"))]
    bounds = [f"{key}/{end}" for key in heldout for end in ("low", "high")]
    names = [*ABSCISSAE, *keys, *bounds]
    known = {key for row in rows for key in row}
    return {name: [_short(r.get(name)) for r in rows] for name in names if name in known}


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def of_run(records: Sequence[Record]) -> dict[str, Any]:
    """Returns the page data of a run: its columns, and a curve for each key of each chart."""
    drawn = charts(records)
    keys = [*dict.fromkeys(key for chart in drawn for key, _ in chart.curves)]
    return {
        "columns": columns(records, keys),
        "charts": [
            {
                "title": chart.title,
                "low": chart.limits[0],
                "high": chart.limits[1],
                "curves": [{"key": key, "label": label} for key, label in chart.curves],
            }
            for chart in drawn
        ],
    }
