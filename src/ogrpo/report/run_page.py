"""One self-contained HTML page about a run: figures, curves, tokens, answers, configuration."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ogrpo.report.curves import of_run
from ogrpo.report.guards import Guards
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir
from ogrpo.report.scores import change, evaluations, interval, reward_rows, scores
from ogrpo.system.files import read_json, write_json, write_text
from ogrpo.system.terminal import shown

Record = dict[str, Any]
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


PUSH_FIGURES = (
    ("bytes of the weights", "sync/bytes", "{:,.0f}"),
    ("bytes sent over the network (a shared folder: 0)", "sync/bytes_sent", "{:,.0f}"),
    ("seconds, from the trainer's weights to their proof", "sync/seconds", "{:.3f}"),
    ("seconds that servers were paused", "sync/paused_seconds", "{:.3f}"),
    ("distance of the probe, nats a token", "sync/probe_gap", "{:.1e}"),
)


def pushes(records: Sequence[Record]) -> list[Record]:
    """Returns the records of the steps that began with a push of weights to the servers."""
    counts = [r.get("sync/count", 0) for r in records]
    before = [0, *counts[:-1]]
    return [r for r, count, last in zip(records, counts, before, strict=True) if count > last]


def _pushes(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Returns rows about the pushes of weights: median, largest and total over the run."""
    pushed, rows = pushes(records), []
    for label, key, form in PUSH_FIGURES:
        values = [r[key] for r in pushed if r.get(key) is not None]
        if values:
            total = sum(values) if "seconds" in label or "bytes" in label else None
            figures = (statistics.median(values), max(values), total)
            rows.append(
                (label, *("" if value is None else form.format(value) for value in figures))
            )
    return rows


SERVER_COUNTS = (
    ("requests sent to servers", "requests"),
    ("requests that failed and were sent again", "failed_requests"),
    ("groups discarded and drawn anew: what drew them was not proven", "discarded_groups"),
    ("requests that servers interrupted for want of cache", "server/preemptions"),
)
"""Counters of the bridge to external servers since the run was last started."""


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
    """Writes the page of a run that has ended, and its data for `redraw`."""
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
    fields = read_json(run.page_data)
    try:
        samples = [
            Sample(s["question"], s["gold"], Answer(**s["before"]), Answer(**s["after"]))
            for s in fields["samples"]
        ]
        tuples: dict[str, Any] = {
            name: [tuple(row) for row in fields[name]]
            for name in ("counts", "provenance", "seconds")
        }
        words = {name: fields[name] for name in ("command", "method", "defaults")}
        data = PageData(samples=samples, **words, **tuples)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run.page_data} is damaged: delete it, and the page has no answers"
        ) from error
    return _page(run, config, data)


def redraw(run: RunDir) -> None:
    """Writes the page of a run anew; see `page_of`."""
    write_text(run.report, page_of(run))


def _page(run: RunDir, config: dict[str, Any], data: PageData) -> str:
    records = run.read_metrics()
    evaluated = evaluations(records)
    if not evaluated:
        raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    preset = "" if config["preset"] == "none" else f"{config['preset']}, "
    last = records[-1]
    served = [
        (label, f"{last.get(key, 0):,.0f}") for label, key in SERVER_COUNTS if pushes(records)
    ]
    whole = sum(seconds for _, seconds, _ in data.seconds)
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
            *((change(evaluated, s.key), f"held-out {s.label}") for s in scores(evaluated)),
            (f"{last['completions']:,}", "completions collected"),
            (f"{last['updates']:,}", "updates"),
            (
                f"{whole or spent(records):.0f} s",
                "from the command to this page" if whole else loop,
            ),
        ],
        scores=[score.label for score in scores(evaluated)],
        evaluations=[
            (r["step"], f"{r['completions']:,}", *(interval(r, s.key) for s in scores(evaluated)))
            for r in evaluated
        ],
        rewards=reward_rows(evaluated),
        warnings=[f"step {each.step}: {each.text}" for each in Guards(records).messages],
        seconds=[(part, f"{s:.1f}", f"{compiled:.1f}") for part, s, compiled in data.seconds],
        phases=[
            (phase, f"{spent(records, phase):.1f}")
            for phase in ("rollout", "update", "sync", "eval")
        ],
        loop=f"{spent(records):.0f} s {loop}",
        provenance=[("command", data.command), ("seed", config["seed"]), *data.provenance],
        push_count=len(pushes(records)),
        all_pushes=int(last.get("sync/count") or 0),
        pushes=_pushes(records),
        counts=[*data.counts, *served],
        samples=data.samples,
        changed=[option for option in options if data.defaults and option[1] != option[2]],
        unchanged=[option for option in options if not data.defaults or option[1] == option[2]],
        data={**of_run(records), "tokens": shown_tokens(run)},
    )


def shown_tokens(run: RunDir) -> list[dict[str, Any]]:
    """Returns the completions whose tokens a page shows: the newest, and the oldest evaluation's.

    At most `MOST_TOKENS` tokens; RUN/tokens.jsonl has all of them.
    """
    steps = run.read_tokens()
    picked, room = [], MOST_TOKENS
    for record in [*steps[:1], *reversed(steps[1:])]:
        room -= sum(len(each["tokens"]) for each in record["completions"])
        if room < 0:
            break
        picked.append(record)
    picked.sort(key=lambda record: record["step"])
    return [{"step": r["step"], **each} for r in picked for each in r["completions"]]
