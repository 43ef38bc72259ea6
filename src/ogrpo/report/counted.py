"""Counts for the report: what was left out, cut off or made up for though nothing failed."""

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
    """Returns label and figure of everything that was left out, cut off or made up for.

    Args:
      config: the run's, as JSON.
      records: of the run's steps.
      left_out: what was not trained or evaluated on, and how often.
      outcomes: how answers came out since the run began, by what they are answers to.
    """
    return [
        *((label, f"{count:,}") for label, count in left_out),
        *(
            (f"{what} judged {name}", f"{count:,}")
            for what, counts in outcomes.items()
            for name, count in counts._asdict().items()
        ),
        *refused(records[-1] if records else {}),
        *clipped(records),
        *replayed(records),
        *certified(config["certificate"]["delta"], records),
        *padded(config["optimizer"]["batching"], records),
        *spent(records),
        *skipped(records),
    ]


def under(prefix: str, record: Record) -> dict[str, Any]:
    """Returns the figures of a record whose names begin so, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}


def mean(records: list[Record], key: str) -> float | None:
    """Returns the mean of a figure over the records that have it; None of none."""
    known = [record[key] for record in records if record.get(key) is not None]
    return sum(known) / len(known) if known else None


def refused(last: Record) -> Counts:
    """Returns completions that a reward could not judge, or that were not what was ordered.

    The first by what went wrong, the others by reason and, where one is known, by server.
    """
    failed, drawn_again = under("reward/failed/", last), under("rollout/refused/", last)
    by_server = {name.partition("/")[0] for name in drawn_again if "/" in name}
    return [
        *(
            (f"completions not judged, and without loss: {name}", f"{count:,.0f}")
            for name, count in failed.items()
            if count
        ),
        *(
            (f"completions refused and drawn again: {', from '.join(name.split('/'))}", f"{n:,.0f}")
            for name, n in drawn_again.items()
            if n and name not in by_server
        ),
    ]


def clipped(records: list[Record]) -> Counts:
    """Returns the share of tokens that the algorithm's clip, gate or mask acted on."""
    label = "tokens with an advantage whose gradient the algorithm removed"
    share = mean(records, "clipped")
    return [] if share is None else [(label, f"{share:.2%}")]


def replayed(records: list[Record]) -> Counts:
    """Returns refusals and evictions of the buffer, and how often it had less than a batch."""
    last = records[-1] if records else {}
    groups = [
        (f"groups {name.removeprefix('replay/').replace('/', ', ')}", f"{count:,.0f}")
        for name, count in last.items()
        if name.startswith(("replay/refused/", "replay/evicted/", "replay/dropped/"))
    ]
    starved = sum(bool(r.get("reuse/starved")) for r in records)
    return [*groups, ("steps whose draws ended for lack of a batch", f"{starved:,}")]


def certified(delta: float | None, records: list[Record]) -> Counts:
    """Returns server periods with a certificate above 0, and the signals that ended draws."""
    used_up = [r for r in records if (_figure(r, "reuse/use", below=False) or 0) >= 1]
    signals = Counter(r["reuse/signal"] for r in used_up)
    ended = [(f"steps ended by the signal {name}", f"{n:,}") for name, n in signals.most_common()]
    if delta is None:
        return ended
    limits = [_figure(r, "certificate/bound", below=True) for r in records]
    limits = [limit for limit in limits if limit is not None]
    label = "server periods whose updates are certified to improve the policy, each with confidence"
    evidence = sum(r.get("certificate/evidence") or 0 for r in records)
    price = mean(records, "certificate/price")
    return [
        (f"{label} {1 - delta:.0%}", f"{sum(x > 0 for x in limits)} of {len(limits)}"),
        (
            f"evidence that any period improved it, in nats: {-math.log(delta):.1f} decide",
            f"{evidence:.1f}",
        ),
        (
            "completions drawn for certificates alone, for each that was trained on",
            "0" if price is None else f"{price:.2f}",
        ),
        *ended,
    ]


def padded(batching: str, records: list[Record]) -> Counts:
    """Returns the share of tokens that updates computed for nothing, and how many programs."""
    share = mean(records, "padding")
    if share is None:
        return []
    shapes = max(r.get("shapes", 1) for r in records)
    return [
        ("padding among the tokens that updates computed", f"{share:.1%} ({batching} batches)"),
        ("shapes of batches, each compiled once", f"{shapes:,.0f}"),
    ]


def spent(records: list[Record]) -> Counts:
    """Returns the completions that the run collected and used, and what they gained."""
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


def skipped(records: list[Record]) -> Counts:
    """Returns records with a figure that is not finite, and updates not taken for that reason."""
    names = Counter(name for r in records for name in r.get("nonfinite", ()))
    damaged = sum(bool(r.get("nonfinite")) for r in records)
    which = f" ({', '.join(name for name, _ in names.most_common())})" if names else ""
    count = records[-1].get("update/skipped", 0) if records else 0
    return [
        ("records with a figure that is NaN or infinite", f"{damaged:,}{which}"),
        ("updates skipped, their loss, gradient or new weights not finite", f"{count:,}"),
    ]


def _figure(record: Record, key: str, *, below: bool) -> float | None:
    """Returns a figure that can be infinite, downwards or upwards only; None if it is absent."""
    if key in record.get("nonfinite", ()):
        return -math.inf if below else math.inf
    return record.get(key)
