"""Groups to put into buffers, the buffers, and everything that a group says, to be compared."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ogrpo.data.replay import (
    BufferLimits,
    Columns,
    Experience,
    Layout,
    ReplayBuffer,
    fifo,
    novelty,
    recency,
    stratified,
    uniform,
    weighted,
)
from ogrpo.data.replay.columns import FINISH_REASONS
from ogrpo.protocol import Completion, Group, VersionSpan

G = 2
LAYOUT = Layout(group_size=G, vocab_size=300)


def recent_and_new(groups):
    """A weight that changes with versions and with uses."""
    return recency(groups, half_life=1.0) * novelty(groups, exponent=1.0)


SAMPLERS = {
    "fifo": fifo,
    "uniform": uniform,
    "weighted": partial(weighted, weight=recent_and_new),
    "stratified": stratified,
}


def loss_mask(number: int, g: int, length: int) -> np.ndarray | None:
    """None for most; for the others all False, all True, or anything between."""
    if number % 4 != 1:
        return None
    share = (0.0, 1.0, 0.5)[(number // 4 + g) % 3]
    return np.random.default_rng([number, g, 8]).random(length) < share


def experience(number: int, *, version: int = 0, problem: int | None = None, rewards=None):
    """A group that differs from those of other numbers in every field."""
    rng = np.random.default_rng([number, 7])

    def completion(g: int) -> Completion:
        length = int(rng.integers(0, 6))
        spans = (VersionSpan(version, 0, length), VersionSpan(version + 1, length, length))
        return Completion(
            token_ids=rng.integers(0, 300, length).astype(np.int32),
            log_probs=-rng.exponential(size=length).astype(np.float32),
            policy_version=version + g,
            temperature=float(rng.uniform(0.5, 1.5)),
            finish_reason=FINISH_REASONS[int(rng.integers(3))],
            version_spans=spans if number % 3 == 0 and g == 1 else (),
            loss_mask=loss_mask(number, g, length),
        )

    prompt = rng.integers(0, 300, int(rng.integers(1, 5))).astype(np.int32)
    values = rng.normal(size=G) if rewards is None else rewards
    return Experience(
        Group(prompt, tuple(completion(g) for g in range(G))),
        rewards=np.array(values, np.float32),
        problem=number if problem is None else problem,
    )


def versioned(numbers) -> list[Experience]:
    """Groups whose version is their number."""
    return [experience(number, version=number) for number in numbers]


def facts(one: Experience) -> tuple:
    """Everything that a group says, exactly, in a form that `==` compares."""
    completions = [
        (
            c.token_ids.tolist(),
            c.log_probs.tolist(),
            c.policy_version,
            c.temperature,
            c.finish_reason,
            [[span.version, span.start, span.end] for span in c.version_spans],
            c.carries_loss.tolist(),
        )
        for c in one.group.completions
    ]
    return one.group.prompt_ids.tolist(), completions, one.rewards.tolist(), one.problem


def contents(columns: Columns) -> list[tuple]:
    """The `facts` of each group of columns."""
    starts = pairwise([0, *np.cumsum(columns.prompt_lengths).tolist()])
    ends = pairwise([0, *np.cumsum(columns.lengths).tolist()])

    def completion(n: int, g: int) -> tuple:
        start, end = next(ends)
        carries_loss = np.ones(end - start, bool)
        for row, member, first, last in columns.without_loss.tolist():
            if (row, member) == (n, g):
                carries_loss[first:last] = False
        return (
            columns.token_ids[start:end].tolist(),
            columns.log_probs[start:end].tolist(),
            columns.policy_versions[n, g],
            columns.temperatures[n, g],
            FINISH_REASONS[columns.finish_reasons[n, g]],
            [rest for row, member, *rest in columns.spans.tolist() if (row, member) == (n, g)],
            carries_loss.tolist(),
        )

    size = columns.lengths.shape[1]
    return [
        (
            columns.prompt_ids[slice(*next(starts))].tolist(),
            [completion(n, g) for g in range(size)],
            columns.rewards[n].tolist(),
            columns.problems[n],
        )
        for n in range(len(columns.problems))
    ]


def all_facts(experiences) -> list[tuple]:
    return [facts(one) for one in experiences]


def expected(numbers) -> list[tuple]:
    """Returns the statistics of a buffer of `versioned` groups."""
    return all_facts(versioned(numbers))


def held_by(buffer: ReplayBuffer) -> list[tuple]:
    """Everything in the buffer, oldest first, without using it up."""
    ids = buffer._table.ids
    return contents(buffer._table.read(ids).columns) if len(ids) else []


def opened(folder: Path | None, numbers=(), limits=BufferLimits(), **options: Any) -> ReplayBuffer:  # noqa: B008
    """The buffer of a folder, new or not, and `versioned` groups inserted one by one."""
    buffer = ReplayBuffer(LAYOUT, limits, fifo, folder=folder, **options)
    for number in numbers:
        buffer.insert(versioned([number]))
    return buffer
