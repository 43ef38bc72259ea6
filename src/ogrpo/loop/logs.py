"""Logged groups at the beginning of a run: missing log-probs computed, then into the buffer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.batching import pad_groups
from ogrpo.data.replay import Experience, ReplayBuffer
from ogrpo.learner.hosts import from_first
from ogrpo.learner.state import Params
from ogrpo.protocol import FloatArray

if TYPE_CHECKING:
    from ogrpo.loop.parts import Parts

BehaviorFn = Callable[[Params, Batch[np.ndarray]], FloatArray]
"""`(the first weights, padded groups) -> log-probs [N, G, T]` of the model that drew a log."""


class Logged(NamedTuple):
    """The log that a run begins with."""

    read: Callable[[], Sequence[Experience]]
    """Returns its groups, whose log-probs are NaN where it has none."""
    behavior: BehaviorFn
    """Computes those."""
    alone: bool
    """Whether nothing else is trained on."""


def insert_logged(buffer: ReplayBuffer, params: Params, parts: "Parts") -> None:
    """Puts the log's groups into a new buffer, if the run has a log.

    Args:
      buffer: of the run.
      params: the first weights.
      parts: of the run.

    Raises:
      ValueError: nothing else is trained on, and the buffer took in less than a draw.
    """
    if parts.logged is None:
        return
    groups = [*parts.logged.read()]
    lacking = [n for n, one in enumerate(groups) if _lacks(one)]
    size = parts.schedule.draw_size
    for first in range(0, len(lacking), size):
        places = np.resize(lacking[first : first + size], size)  # one shape, one program
        done = with_log_probs([groups[n] for n in places], params, parts)
        groups = [*groups]
        for n, one in zip(places, done, strict=True):
            groups[n] = one
    buffer.insert(groups)
    held = from_first(lambda: int(buffer.statistics()["groups"]))
    if parts.logged.alone and held < size:
        raise ValueError(
            f"the log has {len(groups)} groups of {parts.collection.sampling.group_size}"
            f" completions of a prompt, of which the buffer took in {held}, fewer than a draw of"
            f" {size}: give a smaller --schedule.draw or --rollout.group-size, or more rows"
        )


def with_log_probs(
    groups: Sequence[Experience], params: Params, parts: "Parts"
) -> list[Experience]:
    """Returns groups with the behaviour model's log-probs where they have none."""
    assert parts.logged is not None
    longest = parts.prompts.length, parts.collection.sampling.max_tokens
    rewards = np.stack([one.rewards for one in groups])
    batch = pad_groups([one.group for one in groups], *longest, rewards=rewards)
    batch = batch._replace(behavior_log_probs=np.nan_to_num(batch.behavior_log_probs))
    computed = np.asarray(parts.logged.behavior(params, batch), np.float32)
    return [_filled(*pair) for pair in zip(groups, computed, strict=True)]


def _lacks(one: Experience) -> bool:
    return any(np.isnan(each.log_probs).any() for each in one.group.completions)


def _filled(one: Experience, computed: FloatArray) -> Experience:
    done = tuple(
        replace(each, log_probs=row[: len(each.log_probs)])
        if np.isnan(each.log_probs).any()
        else each
        for each, row in zip(one.group.completions, computed, strict=True)
    )
    return replace(one, group=replace(one.group, completions=done))
