"""Logged groups at the beginning of a run: missing log-probs computed, then into the buffer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.batching import pad_groups
from ogrpo.data.logs import lacks_log_probs
from ogrpo.data.replay import Experience, ReplayBuffer
from ogrpo.learner.hosts import from_first
from ogrpo.learner.state import Params
from ogrpo.protocol import FloatArray

if TYPE_CHECKING:
    from ogrpo.loop.parts import Parts

ScoreFn = Callable[[Batch[np.ndarray]], FloatArray]
"""`padded groups -> log-probs [N, G, T]` of a model."""


class Logged(NamedTuple):
    """The log that a run begins with."""

    read: Callable[[], Sequence[Experience]]
    """Returns its groups, whose log-probs are NaN where it has none."""
    behavior: Callable[[Params, Batch[np.ndarray]], FloatArray]
    """Computes those of the model that drew it, which may be the first weights, its argument."""
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
    groups, size = [*parts.logged.read()], parts.schedule.draw_size
    places = [n for n, one in enumerate(groups) if any(map(lacks_log_probs, one.group.completions))]
    score = partial(parts.logged.behavior, params)
    lengths = parts.prompts.length, parts.collection.sampling.max_tokens
    computed = scored([groups[n] for n in places], score, lengths, together=size)
    for n in places:
        done = [(each, next(computed)) for each in groups[n].group.completions]
        filled = tuple(replace(c, log_probs=x) if lacks_log_probs(c) else c for c, x in done)
        groups[n] = replace(groups[n], group=replace(groups[n].group, completions=filled))
    buffer.insert(groups)
    held = from_first(lambda: int(buffer.statistics()["groups"]))
    if parts.logged.alone and held < size:
        raise ValueError(
            f"the buffer took in {held} of the log's {len(groups)} groups, fewer than a draw of"
            f" {size}: give a smaller --schedule.draw or --rollout.group-size, or more rows"
        )


def scored(
    groups: Sequence[Experience], score: ScoreFn, lengths: tuple[int, int], *, together: int
) -> Iterator[FloatArray]:
    """Yields a model's log-probs of each completion.

    Args:
      groups: of one size.
      score: padded groups -> log-probs.
      lengths: tokens that prompts and completions are padded to.
      together: groups at a time, always as many: one program.
    """
    for first in range(0, len(groups), together):
        part = groups[first : first + together]
        whole = [*part, *[part[0]] * (together - len(part))]
        rewards = np.stack([one.rewards for one in whole])
        batch = pad_groups([one.group for one in whole], *lengths, rewards=rewards)
        computed = score(batch._replace(behavior_log_probs=np.zeros_like(batch.behavior_log_probs)))
        for one, rows in zip(part, np.asarray(computed, np.float32), strict=False):
            for completion, row in zip(one.group.completions, rows, strict=True):
                yield row[: len(completion.token_ids)]
