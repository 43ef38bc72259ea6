"""One self-contained HTML page about a run: figures, curves, counts, answers, configuration."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ogrpo.report.guards import Guards
from ogrpo.report.page import embedded, render
from ogrpo.report.plots import pushes, save_plots
from ogrpo.report.run_dir import RunDir
from ogrpo.report.scores import change, evaluations, interval, reward_rows, scores
from ogrpo.system.files import read_json, write_json, write_text
from ogrpo.system.terminal import shown

Record = dict[str, Any]


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


def _cards(
    evaluated: list[Record], records: list[Record], wall_seconds: float | None
) -> list[dict[str, str]]:
    last = records[-1]
    spent = sum(value for r in records for key, value in r.items() if key.startswith("seconds/"))
    time = {"value": f"{spent:.0f} s", "label": "in the loop, compilation included"}
    if wall_seconds is not None:
        time = {
            "value": f"{wall_seconds:.0f} s",
            "label": f"from the command to this page; {spent:.0f} s of all steps in the loop",
        }
    return [
        *(
            {"value": change(evaluated, score.key), "label": f"held-out {score.label}"}
            for score in scores(evaluated)
        ),
        {"value": f"{last['completions']:,}", "label": "completions collected"},
        {"value": f"{last['updates']:,}", "label": "updates"},
        time,
    ]


PUSH_FIGURES = (
    ("bytes of the weights", "sync/bytes", "{:,.0f}"),
    ("bytes sent over the network (a shared folder: 0)", "sync/bytes_sent", "{:,.0f}"),
    ("seconds, from the trainer's weights to their proof", "sync/seconds", "{:.3f}"),
    ("seconds that servers were paused", "sync/paused_seconds", "{:.3f}"),
    ("distance of the probe, nats a token", "sync/probe_gap", "{:.1e}"),
)


def _pushes(records: list[Record]) -> list[dict[str, str]]:
    """Returns rows about the pushes of weights: median, largest and total over the run."""
    pushed = pushes(records)
    rows = []
    for label, key, form in PUSH_FIGURES:
        values = [r[key] for r in pushed if r.get(key) is not None]
        if values:
            total = sum(values) if "seconds" in label or "bytes" in label else None
            figures = (statistics.median(values), max(values), total)
            texts = ["" if value is None else form.format(value) for value in figures]
            rows.append(dict(zip(("median", "largest", "total"), texts, strict=True), label=label))
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
    wall_seconds: float | None = None
    """From the command to the page, of the process that wrote it."""


def write_report(run: RunDir, config: dict[str, Any], data: PageData) -> None:
    """Draws the plots and writes the page, and its data for `redraw`."""
    data = replace(data, command=shown(data.command))  # it may name a file in no known encoding
    write_json(run.page_data, asdict(data))
    _write(run, config, data)


def redraw(run: RunDir) -> None:
    """Writes the page of a run anew; one that has not ended yet has no answers to show.

    Raises:
      ValueError: there is no evaluation yet, or what was kept for the page is damaged.
    """
    if run.page_data.is_file():
        data = _read_data(run.page_data)
    else:
        data = PageData(command="(under way)", method=run.read_config()["algorithm"])
    _write(run, run.read_config(), data)


def _read_data(path: Path) -> PageData:
    fields = read_json(path)
    try:
        samples = [
            Sample(s["question"], s["gold"], Answer(**s["before"]), Answer(**s["after"]))
            for s in fields["samples"]
        ]
        pairs = {
            name: [(label, value) for label, value in fields.get(name, ())]
            for name in ("counts", "provenance")
        }
        wall = fields.get("wall_seconds")
        return PageData(fields["command"], fields["method"], samples, **pairs, wall_seconds=wall)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: delete it, and the page has no answers") from error


def _write(run: RunDir, config: dict[str, Any], data: PageData) -> None:
    records = run.read_metrics()
    evaluated = evaluations(records)
    if not evaluated:
        raise ValueError(f"the run in {run.path} has no evaluation yet: wait for its first")
    preset = "" if config["preset"] == "none" else f"{config['preset']}, "
    last = records[-1] if pushes(records) else {}
    served = [(label, f"{last.get(key, 0):,.0f}") for label, key in SERVER_COUNTS if last]
    page = render(
        Path(__file__).with_name("report.html.j2"),
        title=f"ogrpo {Path(config['task']).name}: {preset}seed {config['seed']}",
        method=data.method,
        lead=f"step {records[-1]['step']} of {config['schedule']['steps']}",
        split=config["evaluation"]["split"],
        cards=_cards(evaluated, records, data.wall_seconds),
        scores=[score.label for score in scores(evaluated)],
        evaluations=[
            (r["step"], f"{r['completions']:,}", *(interval(r, s.key) for s in scores(evaluated)))
            for r in evaluated
        ],
        rewards=reward_rows(evaluated),
        warnings=[f"step {each.step}: {each.text}" for each in Guards(records).messages],
        provenance=data.provenance,
        plots=embedded(save_plots(records, run.plots)),
        push_count=len(pushes(records)),
        all_pushes=int(records[-1].get("sync/count") or 0),
        pushes=_pushes(records),
        counts=[*data.counts, *served],
        samples=data.samples,
        command=data.command,
        config=json.dumps(config, indent=2),
    )
    write_text(run.report, page)
