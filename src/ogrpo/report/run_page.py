"""One self-contained HTML page about a run: figures, curves, tokens, answers, configuration.

Its counts are of what was left out, cut off or made up for though nothing failed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from ogrpo.report.curves import of_run
from ogrpo.report.guards import Guards
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir, read_as
from ogrpo.report.scores import Record, evaluations, interval, reward_rows, scores
from ogrpo.rewards.judge import RewardCounts
from ogrpo.system.files import read_json, write_json, write_text
from ogrpo.system.terminal import shown

Counts = list[tuple[str, str]]
MOST_TOKENS = 60_000
"""Tokens of completions on a page: those of the last evaluations, and of the first."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer to a held-out question."""

    text: str
    right: bool


@dataclass(frozen=True)
class Sample:
    """A held-out question, answered before and after."""

    question: str
    gold: str
    before: Answer
    after: Answer


def spent(records: Sequence[Record], phase: str = "") -> float:
    """Returns the wall seconds of all steps in a phase of the loop, or in all of them."""
    keys = f"seconds/{phase}"
    return sum(value for r in records for key, value in r.items() if key.startswith(keys))


SERVER_COUNTS = (
    ("pushes of weights to servers", "sync/count"),
    ("requests sent to servers", "requests"),
    ("requests that failed and were sent again", "failed_requests"),
    ("groups drawn anew: cut off by a push, or by what was not proven", "discarded_groups"),
    ("requests that servers interrupted for want of cache since they began", "server/preemptions"),
)
"""Counters of the bridge to external servers since the run was last started, and the servers' own,
which count since the servers were started."""


@dataclass(frozen=True)
class PageData:
    """Content of a page beside the records and the options of its run."""

    command: str
    method: str
    samples: Sequence[Sample] = ()
    counts: Sequence[tuple[str, str]] = ()
    provenance: Sequence[tuple[str, str]] = ()
    """Commit, versions, machine, hashes of the data: label and value of each."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The config of a run without options."""
    seconds: Sequence[tuple[str, float, float]] = ()
    """Wall time of the process that wrote it: part, seconds, and those of compiling among them."""


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a config by their names with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def write_report(run: RunDir, config: dict[str, Any], data: PageData) -> None:
    """Writes the page of a run that has ended, and its data for `page_of`."""
    keep(run, data)
    write_text(run.report, _page(run, config, data))


def keep(run: RunDir, data: PageData) -> None:
    """Writes what a page shows beside the records, for whoever draws it while the run goes on."""
    # A command may name a file in no known encoding.
    write_json(run.page_data, asdict(replace(data, command=shown(data.command))))


def page_of(run: RunDir) -> str:
    """Returns the page of a run as it is now.

    Raises:
      ValueError: there is no evaluation yet, or what was kept for the page is damaged.
    """
    config = run.read_config()
    if not run.page_data.is_file():
        return _page(run, config, PageData("(not known)", config["algorithm"]))
    try:
        fields = read_json(run.page_data)
        samples = [
            Sample(s["question"], s["gold"], Answer(**s["before"]), Answer(**s["after"]))
            for s in fields["samples"]
        ]
        names = ("counts", "provenance", "seconds")
        tuples: dict[str, Any] = {name: [tuple(row) for row in fields[name]] for name in names}
        words = {name: fields[name] for name in ("command", "method", "defaults")}
        data = PageData(samples=samples, **words, **tuples)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run.page_data} is damaged: delete it, and the page has no answers"
        ) from error
    return _page(run, config, data)


def _page(run: RunDir, config: dict[str, Any], data: PageData) -> str:
    records = run.read_metrics()
    evaluated = evaluations(records)
    if not evaluated:
        raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    preset = "" if config["preset"] == "none" else f"{config['preset']}, "
    last = records[-1]
    counters = SERVER_COUNTS if last.get("sync/count") else ()
    served = [(label, f"{last.get(key, 0):,.0f}") for label, key in counters]
    figures, first, newest = scores(evaluated), evaluated[0], evaluated[-1]
    rows = [(f"{first[s.key]:.3f} → {newest[s.key]:.3f}", f"held-out {s.label}") for s in figures]
    whole = sum(seconds for _, seconds, _ in data.seconds)
    begun = "the last command" if "\n" in data.command else "the command"
    loop = f"in the loop, {spent(records, 'eval'):.0f} s of them in evaluations"
    defaults = dict(flat(data.defaults))
    options = [(name, f"{value}", f"{defaults.get(name, '')}") for name, value in flat(config)]
    return render(
        Path(__file__).with_name("report.html.j2"),
        title=f"ogrpo {Path(config['task']).name}: {preset}seed {config['seed']}",
        method=data.method,
        lead=f"step {last['step']} of {config['schedule']['steps']}",
        split=config["evaluation"]["split"],
        cards=[
            *rows,
            (f"{last['completions']:,}", "completions collected"),
            (f"{last['updates']:,}", "updates"),
            (
                f"{whole or spent(records):.0f} s",
                f"from {begun} to this page" if whole else loop,
            ),
        ],
        scores=[score.label for score in figures],
        evaluations=[
            (r["step"], f"{r['completions']:,}", *(interval(r, s.key) for s in figures))
            for r in evaluated
        ],
        rewards=reward_rows(evaluated),
        warnings=[f"step {each.step}: {each.text}" for each in Guards(records).messages],
        seconds=[(part, f"{s:.1f}", f"{compiled:.1f}") for part, s, compiled in data.seconds],
        phases=[(x, f"{spent(records, x):.1f}") for x in ("rollout", "update", "sync", "eval")],
        loop=f"{spent(records):.0f} s {loop}",
        provenance=[("command", data.command), ("seed", config["seed"]), *data.provenance],
        counts=[*data.counts, *served],
        samples=data.samples,
        changed=[option for option in options if data.defaults and option[1] != option[2]],
        unchanged=[option for option in options if not data.defaults or option[1] == option[2]],
        data={**of_run(records), "tokens": shown_tokens(run)},
    )


def shown_tokens(run: RunDir) -> list[dict[str, Any]]:
    """Returns the completions whose tokens a page shows, in the order of their steps.

    They have at most `MOST_TOKENS` tokens: room is for the newest evaluation first, then for the
    oldest, and then for those between. RUN/tokens.jsonl has all of them.

    Raises:
      ValueError: a line is no step's completions; names it.
    """

    def completions_of(record: Record) -> list[dict[str, Any]]:
        return [{"step": record["step"], **each} for each in record["completions"]]

    steps = read_as(run.tokens, completions_of, "record of a step's completions")[::-1]
    order = steps[:1] + steps[1:][-1:] + steps[1:-1]  # the newest, the oldest, those between
    completions = [each for step in order for each in step]
    tokens = accumulate(len(each["tokens"]) for each in completions)
    fitting = sum(so_far <= MOST_TOKENS for so_far in tokens)
    return sorted(completions[:fitting], key=lambda each: each["step"])


def counted(
    config: Mapping[str, Any],
    records: list[Record],
    left_out: Sequence[tuple[str, int]],
    outcomes: Mapping[str, RewardCounts],
) -> Counts:
    """Returns label and figure of everything that was left out, cut off or made up for.

    Args:
      left_out: what was not trained or evaluated on, and how often.
      outcomes: how answers came out since the run began, by what they are answers to.
    """
    last, rows = records[-1] if records else {}, [(label, f"{n:,}") for label, n in left_out]
    rows += [
        (f"{what} judged {name}", f"{count:,}")
        for what, counts in outcomes.items()
        for name, count in counts._asdict().items()
    ]
    rows += refused(last)
    if (share := mean(records, "clipped")) is not None:
        label = "tokens with an advantage whose gradient the algorithm removed"
        rows.append((label, f"{share:.2%}"))
    rows += [*replayed(records), *certified(config["certificate"]["delta"], records)]
    if (share := mean(records, "padding")) is not None:
        batching, shapes = config["optimizer"]["batching"], max(r.get("shapes", 1) for r in records)
        label = "padding among the tokens that updates computed"
        rows.append((label, f"{share:.1%} ({batching} batches)"))
        rows.append(("shapes of batches, each compiled once", f"{shapes:,.0f}"))
    names = Counter(name for r in records for name in r.get("nonfinite", ()))
    damaged = sum(bool(r.get("nonfinite")) for r in records)
    which = f" ({', '.join(name for name, _ in names.most_common())})" if names else ""
    rows.append(("records with a figure that is NaN or infinite", f"{damaged:,}{which}"))
    label = "updates skipped, their loss, gradient or new weights not finite"
    return [*rows, (label, f"{last.get('update/skipped', 0):,}")]


def mean(records: list[Record], key: str) -> float | None:
    """Returns the mean of a figure over the records that have it; None of none."""
    known = [record[key] for record in records if record.get(key) is not None]
    return sum(known) / len(known) if known else None


def refused(last: Record) -> Counts:
    """Returns completions that a reward could not judge, or that were not what was ordered.

    The first by what went wrong, the others by reason and, where one is known, by server.
    """
    failed, drawn_again = (
        {key.removeprefix(prefix): n for key, n in last.items() if key.startswith(prefix)}
        for prefix in ("reward/failed/", "rollout/refused/")
    )
    by_server = {name.partition("/")[0] for name in drawn_again if "/" in name}
    counts = {f"completions not judged, and without loss: {name}": n for name, n in failed.items()}
    for name, n in drawn_again.items():
        if name not in by_server:
            counts[f"completions refused and drawn again: {name.replace('/', ', from ', 1)}"] = n
    return [(label, f"{n:,.0f}") for label, n in counts.items() if n]


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
    decided = f"evidence that any period improved it, in nats: {-math.log(delta):.1f} decide"
    price = mean(records, "certificate/price")
    drawn = "completions drawn for certificates alone, for each that was trained on"
    return [
        (f"{label} {100 * (1 - delta):.6g}%", f"{sum(x > 0 for x in limits)} of {len(limits)}"),
        (decided, f"{evidence:.1f}"),
        (drawn, "0" if price is None else f"{price:.2f}"),
        *ended,
    ]


def _figure(record: Record, key: str, *, below: bool) -> float | None:
    """Returns a figure that can be infinite, downwards or upwards only; None if it is absent."""
    if key in record.get("nonfinite", ()):
        return -math.inf if below else math.inf
    return record.get(key)
