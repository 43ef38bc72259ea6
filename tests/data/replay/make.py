"""Groups to put into buffers, the buffers, and everything that a group says, to be compared."""

from functools import partial
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
from ogrpo.data.replay.columns import FINISH_REASONS, split
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


def unpacked(group: Columns) -> Experience:
    """The one group of columns."""
    ends = np.cumsum(group.lengths)[:-1]
    masks = np.split(np.ones(group.lengths.sum(), bool), ends)
    for _, g, start, end in group.without_loss.tolist():
        masks[g][start:end] = False
    tokens = zip(np.split(group.token_ids, ends), np.split(group.log_probs, ends), strict=True)
    completions = (
        Completion(
            token_ids=ids.astype(np.int32),
            log_probs=log_probs,
            policy_version=group.policy_versions[0, g],
            temperature=group.temperatures[0, g],
            finish_reason=FINISH_REASONS[group.finish_reasons[0, g]],
            version_spans=tuple(VersionSpan(*x) for _, n, *x in group.spans.tolist() if n == g),
            loss_mask=masks[g],
        )
        for g, (ids, log_probs) in enumerate(tokens)
    )
    prompt_ids = group.prompt_ids.astype(np.int32)
    return Experience(Group(prompt_ids, tuple(completions)), group.rewards[0], group.problems[0])


def contents(columns: Columns) -> list[tuple]:
    """The `facts` of each group of columns."""
    return all_facts(map(unpacked, split(columns)))


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
