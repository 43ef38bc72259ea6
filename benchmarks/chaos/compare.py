"""Compares two runs: records, weights, progress and every group that was collected."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.chaos.schedules import BATCH, PROMPTS
from benchmarks.rows import read_rows
from ogrpo.data.batching import PromptStream

COSTS = ("seconds", "tokens/s", "collect/", "sync/", "server/", "per_second", "/dropped")
"""Measured, or counted since a process began."""
ANEW = (
    *("reward/calls", "reward/completions", "reward/processes", "reward/even/"),
    *("requests", "failed_requests", "discarded_groups", "rollout/"),
)
"""Counts of rewards and of servers, which begin anew with the trainer's process."""


def differences(run: Path, reference: Path) -> Iterator[str]:
    """Yields what differs between a run that was killed and one that was not.

    Figures, except for costs, and collected completions are compared to the bit, files of the final
    weights to the byte.
    """
    yield from record_differences(*(read_rows(at / "metrics.jsonl") for at in (run, reference)))
    for folder in ("model", "adapter"):
        names = {p.name for at in (run, reference) for p in (at / folder).glob("*")}
        for name in sorted(names - {"README.md"}):  # the card has the command
            files = [at / folder / name for at in (run, reference)]
            ours, theirs = (f.read_bytes() if f.is_file() else None for f in files)
            if ours and folder == "adapter" and name.endswith(".json"):  # names its base by path
                ours = ours.replace(bytes(run), bytes(reference))
            if ours != theirs:
                yield f"{folder}/{name} differs"
        if not names and folder == "model":
            yield "there is no model"
    ours, theirs = groups(run), groups(reference)
    if len(ours) != len(theirs):
        yield f"the experience has {len(ours)} completions, not {len(theirs)}"
    for one, other in zip(ours, theirs, strict=False):
        for name in other:
            if one[name] != other[name]:
                where = f"group {other['group']}, completion {other['completion']}"
                yield f"experience: {name} of {where} is {one[name]}, not {other[name]}"


def record_differences(
    records: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> Iterator[str]:
    """Yields the figures of records that a repeated run has not to the bit."""
    steps, expected_steps = ([r["step"] for r in each] for each in (records, expected))
    if steps != expected_steps:
        yield f"metrics.jsonl has steps {steps}, not {expected_steps}"
        return
    for ours, theirs in zip(records, expected, strict=True):
        for name in sorted({*ours, *theirs}):
            one, other = ours.get(name, "absent"), theirs.get(name, "absent")
            cost = any(cost in name for cost in COSTS) or name.startswith(ANEW)
            if not cost and one != other:
                yield f"step {ours['step']}: {name} is {one}, not {other}"


def groups(run: Path) -> list[dict[str, Any]]:
    """Returns every completion that was collected, in the order of their ids."""
    files = sorted((run / "experience").glob("groups-*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def prompt_differences(run: Path, *, steps: int, size: int) -> Iterator[str]:
    """Yields the prompts of steps that are not in the data exactly once, and steps not recorded."""
    rows, count = groups(run), steps * BATCH
    ids = [row["group"] for row in rows]
    if ids != [n for n in range(count) for _ in range(size)]:
        yield f"{len(set(ids))} groups of {len(ids)} completions, not {count} of {size} each"
    stream = PromptStream(PROMPTS, BATCH, 0)
    expected = np.concatenate([stream.indices(step) for step in range(steps)]).tolist()
    problems = [row["problem"] for row in rows[::size]]
    lost, more = Counter(expected) - Counter(problems), Counter(problems) - Counter(expected)
    if problems != expected:
        yield f"prompts differ: {[*lost.elements()]} are lost, {[*more.elements()]} doubled"
    recorded = [record["step"] for record in read_rows(run / "metrics.jsonl")]
    if recorded != list(range(steps + 1)):
        yield f"metrics.jsonl has steps {recorded}, not 0 to {steps}"
