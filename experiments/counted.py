"""What a reader of the report should know happened, though nothing failed."""

from collections import Counter
from typing import Any

from experiments.config import Gsm8k
from experiments.run_dir import RunDir
from experiments.tasks import Prepared

Record = dict[str, Any]
Counts = list[tuple[str, str]]


def counted(config: Gsm8k, run: RunDir, prepared: Prepared) -> Counts:
    """Label and figure, of everything that was left out, cut off or made up for."""
    records = run.read_metrics()
    judged = prepared.reward.counts._asdict()
    return [
        *((label, f"{count:,}") for label, count in prepared.left_out),
        *((f"completions judged {name}", f"{count:,}") for name, count in judged.items()),
        *clipped(records),
        *replayed(records),
        *certified(config, records),
        *signals(records),
        *padded(config, records),
        *spent(records),
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


def certified(config: Gsm8k, records: list[Record]) -> Counts:
    """Server periods with a certificate above 0."""
    if config.certificate.delta is None:
        return []
    bounds = [r["certificate/bound"] for r in records if r["certificate/bound"] is not None]
    label = "server periods certified to improve on the last, each with confidence"
    found = f"{sum(bound > 0 for bound in bounds)} of {len(bounds)}"
    return [(f"{label} {1 - config.certificate.delta:.0%}", found)]


def signals(records: list[Record]) -> Counts:
    """Which signal ended a step's draws, and how often."""
    bound = Counter(r["reuse/signal"] for r in records if (r.get("reuse/use") or 0) >= 1)
    return [(f"steps ended by the signal {name}", f"{n:,}") for name, n in bound.most_common()]


def padded(config: Gsm8k, records: list[Record]) -> Counts:
    """What updates computed for nothing, and in how many programs."""
    shares = [r["padding"] for r in records if r.get("padding") is not None]
    if not shares:
        return []
    shapes = max(r.get("shapes", 1) for r in records)
    how = f"{sum(shares) / len(shares):.1%} ({config.optimizer.batching} batches)"
    return [
        ("padding among the tokens that updates computed", how),
        ("shapes of batches, each compiled once", f"{shapes:,.0f}"),
    ]


def spent(records: list[Record]) -> Counts:
    """What the run bought and used, and what that gained."""
    evaluated = [r for r in records if r.get("pass@1/sampled") is not None]
    if len(evaluated) < 2 or not evaluated[-1]["completions"]:
        return []
    first, last = evaluated[0], evaluated[-1]
    gain = (last["pass@1/sampled"] - first["pass@1/sampled"]) / last["completions"] * 1000
    return [
        ("sampled Pass@1 gained per 1,000 completions", f"{gain:+.4f}"),
        ("groups drawn for each one bought", f"{last['replay/ratio']:.2f}"),
        ("FLOPs of rollouts, counted from shapes", f"{last['flops/rollout']:.3g}"),
        ("FLOPs of updates, counted from shapes", f"{last['flops/update']:.3g}"),
    ]
