"""What a reader of the report should know happened, though nothing failed."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ogrpo.report.scores import evaluations, scores
from ogrpo.rewards.judge import RewardCounts

Record = dict[str, Any]
Counts = list[tuple[str, str]]


def counted(
    config: Mapping[str, Any],
    records: list[Record],
    left_out: Sequence[tuple[str, int]],
    outcomes: Mapping[str, RewardCounts],
) -> Counts:
    """Label and figure, of everything that was left out, cut off or made up for.

    Args:
      config: the run's, as JSON.
      records: of the run's steps.
      left_out: what was not trained or evaluated on, and how often.
      outcomes: how answers came out, by what they are answers to.
    """
    return [
        *((label, f"{count:,}") for label, count in left_out),
        *(line for what, counts in outcomes.items() for line in judged(what, counts)),
        *failed(records),
        *refused(records),
        *clipped(records),
        *replayed(records),
        *certified(config["certificate"]["delta"], records),
        *signals(records),
        *padded(config["optimizer"]["batching"], records),
        *spent(records),
        *nonfinite(records),
        *skipped(records),
    ]


def judged(what: str, counts: RewardCounts) -> Counts:
    """How answers came out since the run began, earlier processes included."""
    return [(f"{what} judged {name}", f"{count:,}") for name, count in counts._asdict().items()]


def failed(records: list[Record]) -> Counts:
    """Completions that a reward could not judge, by what went wrong."""
    last = records[-1] if records else {}
    prefix = "reward/failed/"
    return [
        (f"completions not judged, and without loss: {name.removeprefix(prefix)}", f"{count:,.0f}")
        for name, count in last.items()
        if name.startswith(prefix) and count
    ]


def refused(records: list[Record]) -> Counts:
    """Completions that were not what was ordered, by reason and, where one is known, by server."""
    last, prefix = records[-1] if records else {}, "rollout/refused/"
    counts = {name.removeprefix(prefix): n for name, n in last.items() if name.startswith(prefix)}
    told = {name.partition("/")[0] for name in counts if "/" in name}
    return [
        (f"completions refused and drawn again: {', from '.join(name.split('/'))}", f"{n:,.0f}")
        for name, n in counts.items()
        if n and name not in told
    ]


def clipped(records: list[Record]) -> Counts:
    """How much the algorithm's clip, gate or mask did."""
    shares = [r["clipped"] for r in records if r.get("clipped") is not None]
    if not shares:
        return []
    share = sum(shares) / len(shares)
    return [("tokens with an advantage whose gradient the algorithm removed", f"{share:.2%}")]


def replayed(records: list[Record]) -> Counts:
    """What the buffer refused and evicted, and how often it had less than a batch."""
    last = records[-1] if records else {}
    shown = [
        (f"groups {name.removeprefix('replay/').replace('/', ', ')}", f"{count:,.0f}")
        for name, count in last.items()
        if name.startswith(("replay/refused/", "replay/evicted/", "replay/dropped/"))
    ]
    starved = sum(bool(r.get("reuse/starved")) for r in records)
    return [*shown, ("steps whose draws ended for lack of a batch", f"{starved:,}")]


def certified(delta: float | None, records: list[Record]) -> Counts:
    """Server periods with a certificate above 0."""
    if delta is None:
        return []
    bounds = [_figure(r, "certificate/bound", below=True) for r in records]
    bounds = [bound for bound in bounds if bound is not None]
    label = "server periods whose updates are certified to improve the policy, each with confidence"
    found = f"{sum(bound > 0 for bound in bounds)} of {len(bounds)}"
    prices = [r["certificate/price"] for r in records if r.get("certificate/price") is not None]
    price = f"{sum(prices) / len(prices):.2f}" if prices else "0"
    drawn = "completions drawn for certificates alone, for each that was trained on"
    return [(f"{label} {1 - delta:.0%}", found), (drawn, price)]


def signals(records: list[Record]) -> Counts:
    """Which signal ended a step's draws, and how often."""
    used_up = [r for r in records if (_figure(r, "reuse/use", below=False) or 0) >= 1]
    bound = Counter(r["reuse/signal"] for r in used_up)
    return [(f"steps ended by the signal {name}", f"{n:,}") for name, n in bound.most_common()]


def padded(batching: str, records: list[Record]) -> Counts:
    """What updates computed for nothing, and in how many programs."""
    shares = [r["padding"] for r in records if r.get("padding") is not None]
    if not shares:
        return []
    shapes = max(r.get("shapes", 1) for r in records)
    how = f"{sum(shares) / len(shares):.1%} ({batching} batches)"
    return [
        ("padding among the tokens that updates computed", how),
        ("shapes of batches, each compiled once", f"{shapes:,.0f}"),
    ]


def spent(records: list[Record]) -> Counts:
    """What the run collected and used, and what that gained."""
    evaluated = evaluations(records)
    headline = scores(evaluated)
    if len(evaluated) < 2 or not evaluated[-1]["completions"] or not headline:
        return []
    first, last = evaluated[0], evaluated[-1]
    key, name, _ = headline[0]
    gain = (last[key] - first[key]) / last["completions"] * 1000
    return [
        (f"{name}: gained per 1,000 completions", f"{gain:+.4f}"),
        ("updates in which each completion collected was used", f"{last['replay/ratio']:.2f}"),
        ("FLOPs of rollouts, counted from shapes", f"{last['flops/rollout']:.3g}"),
        ("FLOPs of updates, counted from shapes", f"{last['flops/update']:.3g}"),
    ]


def nonfinite(records: list[Record]) -> Counts:
    """Records with a figure that was NaN or infinite, and which figures those were."""
    names = Counter(name for r in records for name in r.get("nonfinite", ()))
    found = sum(bool(r.get("nonfinite")) for r in records)
    which = f" ({', '.join(name for name, _ in names.most_common())})" if names else ""
    return [("records with a figure that is NaN or infinite", f"{found:,}{which}")]


def skipped(records: list[Record]) -> Counts:
    """Updates that were not taken, as they would not have been finite."""
    count = records[-1].get("update/skipped", 0) if records else 0
    return [("updates skipped, their loss, gradient or new weights not finite", f"{count:,}")]


def _figure(record: Record, key: str, *, below: bool) -> float | None:
    """A figure that can be infinite, downwards or upwards only; None where there is none."""
    if key in record.get("nonfinite", ()):
        return -math.inf if below else math.inf
    return record.get(key)
