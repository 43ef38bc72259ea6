"""Whether two runs are one: records, weights, progress and every group that was collected."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.chaos.schedules import BATCH, PROMPTS
from ogrpo.data.batching import PromptStream

COSTS = ("seconds", "tokens/s", "collect/", "sync/", "server/", "per_second", "/dropped")
"""What is measured, or counted since a process began."""
ANEW = (
    *("reward/calls", "reward/completions", "reward/processes", "reward/even/"),
    *("requests", "failed_requests", "discarded_groups", "rollout/"),
)
"""Counts of rewards and of servers, which begin anew with the trainer's process."""
WHOLE = ("model", "adapter")


def differences(run: Path, reference: Path) -> list[str]:
    """What differs between a run that was killed and one that was not; nothing if they are one."""
    return [
        *record_differences(records(run), records(reference)),
        *file_differences(run, reference),
        *group_differences(groups(run), groups(reference)),
    ]


def records(run: Path) -> list[dict[str, Any]]:
    """The records on disk."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def repeats(name: str) -> bool:
    """Whether a figure of a record is the same in a run that is repeated."""
    return not any(cost in name for cost in COSTS) and not name.startswith(ANEW)


def record_differences(
    found: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> Iterator[str]:
    """Figures that are not the same to the bit."""
    steps, wanted = [r["step"] for r in found], [r["step"] for r in expected]
    if steps != wanted:
        yield f"metrics.jsonl has steps {steps}, not {wanted}"
        return
    for ours, theirs in zip(found, expected, strict=True):
        for name in sorted({*ours, *theirs}):
            one, other = ours.get(name, "absent"), theirs.get(name, "absent")
            if repeats(name) and one != other:
                yield f"step {ours['step']}: {name} is {one}, not {other}"


def file_differences(run: Path, reference: Path) -> Iterator[str]:
    """Files of the final weights that are not the same to the byte."""
    for folder in WHOLE:
        names = {p.name for at in (run, reference) for p in (at / folder).glob("*")}
        for name in sorted(names):
            files = [at / folder / name for at in (run, reference)]
            told = [f.read_bytes() if f.is_file() else None for f in files]
            if folder == "adapter" and name.endswith(".json"):  # names its base by path
                told = [told[0] and told[0].replace(bytes(run), bytes(reference)), told[1]]
            if told[0] != told[1]:
                yield f"{folder}/{name} differs"
        if not names and folder == "model":
            yield "there is no model"


def groups(run: Path) -> list[dict[str, Any]]:
    """Every completion that was collected, in the order of their ids."""
    files = sorted((run / "experience").glob("groups-*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    return [row for table in tables for row in table.to_pylist()]


def group_differences(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> Iterator[str]:
    """Completions on disk that are not the same."""
    if len(found) != len(expected):
        yield f"the experience has {len(found)} completions, not {len(expected)}"
    for ours, theirs in zip(found, expected, strict=False):
        for name in theirs:
            if ours[name] != theirs[name]:
                where = f"group {theirs['group']}, completion {theirs['completion']}"
                yield f"experience: {name} of {where} is {ours[name]}, not {theirs[name]}"


def prompt_differences(run: Path, *, steps: int, size: int, seed: int = 0) -> Iterator[str]:
    """Prompts of steps that are not in the data exactly once, whatever was drawn for them."""
    rows, count = groups(run), steps * BATCH
    ids = [row["group"] for row in rows]
    if ids != [n for n in range(count) for _ in range(size)]:
        yield f"{len(set(ids))} groups of {len(ids)} completions, not {count} of {size} each"
    stream = PromptStream(PROMPTS, BATCH, seed)
    wanted = np.concatenate([stream.indices(step) for step in range(steps)]).tolist()
    found = [row["problem"] for row in rows[::size]]
    lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    if found != wanted:
        yield f"prompts differ: {[*lost.elements()]} are lost, {[*more.elements()]} doubled"
    told = [record["step"] for record in records(run)]
    if told != list(range(steps + 1)):
        yield f"metrics.jsonl has steps {told}, not 0 to {steps}"
