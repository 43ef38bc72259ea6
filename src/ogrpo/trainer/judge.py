"""What completions earn: decoded, handed to the task's rewards, and back beside their groups."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import ScoreRequest, Scores
from ogrpo.rollout.collection import Request, Rewarded
from ogrpo.rollout.protocol import Group, IntArray
from ogrpo.tasks import Example
from ogrpo.terminal import shown
from ogrpo.trainer.flips import drawn, flipped

log = logging.getLogger(__name__)
Decode = Callable[[IntArray], str]


class RewardError(RuntimeError):
    """Not one completion of many could be judged."""


class GroupJudge:
    """Has a task's completions rewarded; several threads may ask at once.

    A completion that a reward could not judge carries no loss, and the mean of its group's others
    stands in for its reward, so that it moves no advantage. It is counted, and the first one of
    each kind is told.

    Args:
      pool: the task's rewards.
      examples: by the number of their prompt.
      decode: token ids -> the text that rewards are given.
      flip: chance that the reward of a training completion is flipped.
    """

    def __init__(
        self,
        pool: RewardPool,
        examples: Sequence[Example],
        decode: Decode,
        *,
        flip: float = 0.0,
    ) -> None:
        self._pool, self._examples, self._decode = pool, examples, decode
        self._flip = flip
        self._told: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(
        self, request: Request, places: Sequence[int], groups: Sequence[Group]
    ) -> list[Rewarded]:
        """The groups at these places of a request with what they earned."""
        scores = self._scores([request.problems[place] for place in places], groups)
        if self._flip:
            sizes = [len(group.completions) for group in groups]
            scores = flipped(scores, drawn(request, places, sizes, share=self._flip))
        return _by_group(groups, scores)

    def heldout(self, groups: Sequence[Group]) -> NDArray[np.float32]:
        """Rewards `[N, G]` of the groups of all examples, in order; NaN where none is known.

        Raises:
          RewardError: none is known.
        """
        scores = self._scores(range(len(groups)), groups)
        if scores.failed.all():
            first = scores.failures[0].message
            raise RewardError(f"no answer to a held-out prompt could be judged; first: {first}")
        rewards = np.where(scores.failed, np.float32(np.nan), scores.rewards)
        return rewards.reshape(len(groups), -1)

    def shown(self, groups: Sequence[Group]) -> list[tuple[str, float]]:
        """The text and the reward of the first completion of the first examples' groups."""
        rewarded = self.rewarded(range(len(groups)), groups)
        texts = [self._decode(group.completions[0].token_ids) for group in groups]
        return [(text, float(each.rewards[0])) for text, each in zip(texts, rewarded, strict=True)]

    @property
    def rewards(self) -> Sequence[Reward]:
        """What judges."""
        return self._pool.rewards

    def rewarded(self, problems: Sequence[int], groups: Sequence[Group]) -> list[Rewarded]:
        """The groups of these problems with what they earned, all judged at once."""
        return _by_group(groups, self._scores(problems, groups))

    def _scores(self, problems: Sequence[int], groups: Sequence[Group]) -> Scores:
        scores = self._pool.score(self._request(problems, groups))
        self._tell(scores)
        return scores

    def metrics(self) -> Mapping[str, float]:
        """What the rewards counted since the run began."""
        return self._pool.metrics()

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Counts on from the metrics of an earlier part of the run."""
        self._pool.go_on_from(before)

    def _request(self, problems: Sequence[int], groups: Sequence[Group]) -> ScoreRequest:
        asked = [
            self._group_request(self._examples[n], group)
            for n, group in zip(problems, groups, strict=True)
        ]
        names = {name: None for each in asked for name in each.columns}
        return ScoreRequest(
            prompts=[x for each in asked for x in each.prompts],
            completions=[x for each in asked for x in each.completions],
            completion_ids=[x for each in asked for x in each.completion_ids],
            finish_reasons=[x for each in asked for x in each.finish_reasons],
            columns={
                name: [x for each in asked for x in each.columns.get(name, [None] * len(each))]
                for name in names
            },
        )

    def _group_request(self, example: Example, group: Group) -> ScoreRequest:
        return ScoreRequest.of_group(
            example.prompt,
            [self._decode(c.token_ids) for c in group.completions],
            completion_ids=[c.token_ids.tolist() for c in group.completions],
            finish_reasons=[c.finish_reason for c in group.completions],
            columns=example.columns,
        )

    def _tell(self, scores: Scores) -> None:
        with self._lock:
            for failure in scores.failures:
                if (kind := (failure.reward, failure.kind)) not in self._told:
                    self._told.add(kind)
                    log.warning("%s (this and others like it are counted)", shown(failure.message))


def middle(rewards: NDArray[np.float32]) -> np.float32:
    """The mean, which float32 rounding may not move out of the rewards; 0 of none.

    Else a group of equal rewards would have a variance, and standardised advantages be noise.
    """
    if not rewards.size:
        return np.float32(0)
    return np.clip(rewards.mean(), rewards.min(), rewards.max())


def _by_group(groups: Sequence[Group], scores: Scores) -> list[Rewarded]:
    sizes = [len(group.completions) for group in groups]
    ends = np.cumsum(sizes)
    return [
        _rewarded(group, scores, slice(end - size, end))
        for group, size, end in zip(groups, sizes, ends, strict=True)
    ]


def _rewarded(group: Group, scores: Scores, part: slice) -> Rewarded:
    values = {name: each[part] for name, each in scores.values.items()}
    failed = scores.failed[part]
    rewards = scores.rewards[part]
    if not failed.any():
        return Rewarded(group, rewards, values)
    mean = middle(rewards[~failed])
    completions = tuple(
        replace(c, loss_mask=np.zeros(len(c.token_ids), bool)) if bad else c
        for c, bad in zip(group.completions, failed, strict=True)
    )
    messages = {f.completion: f.message for f in scores.failures}
    places = range(part.start, part.stop)
    return Rewarded(
        replace(group, completions=completions),
        np.where(failed, mean, rewards).astype(np.float32),
        values,
        tuple(messages[n] for n, bad in zip(places, failed, strict=True) if bad),
    )
