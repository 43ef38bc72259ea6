"""What completions earn: decoded, handed to the task's rewards, and back beside their groups."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ogrpo.loop.flips import drawn, flipped
from ogrpo.loop.heldout import HeldoutVerdicts
from ogrpo.protocol import Group, IntArray
from ogrpo.rewards.judge import Judge, RewardCounts
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import ScoreRequest, Scores
from ogrpo.rollout.collection import Request, Rewarded
from ogrpo.system.terminal import shown
from ogrpo.tasks import Example

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
      success: the reward that the task marks as saying right or wrong.
    """

    def __init__(
        self,
        pool: RewardPool,
        examples: Sequence[Example],
        decode: Decode,
        *,
        flip: float = 0.0,
        success: str | None = None,
    ) -> None:
        self._pool, self._examples, self._decode = pool, examples, decode
        self._flip, self._success = flip, success
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

    def heldout(self, groups: Sequence[Group]) -> HeldoutVerdicts:
        """Judges the groups of all examples, in order.

        Raises:
          RewardError: no completion has a verdict.
        """
        before = self._counts()
        scores = self._scores(range(len(groups)), groups)
        if scores.failed.all():
            first = scores.failures[0].message
            raise RewardError(f"no answer to a held-out prompt could be judged; first: {first}")
        shares = [
            (now.unparsable - then.unparsable) / (now.total - then.total)
            for then, now in zip(before, self._counts(), strict=True)
            if now.total > then.total
        ]
        rewards = np.where(scores.failed, np.float32(np.nan), scores.rewards)
        size = (len(groups), -1)
        cut = [c.finish_reason != "stop" for group in groups for c in group.completions]
        return HeldoutVerdicts(
            rewards=rewards.reshape(size),
            values={name: each.reshape(size) for name, each in scores.values.items()},
            success=self._success,
            unparsable=max(shares, default=None),
            truncated=float(np.mean(cut)),
        )

    def _counts(self) -> list[RewardCounts]:
        """How answers came out so far, by each reward that counts it."""
        functions = [reward.function for reward in self.rewards]
        return [function.counts for function in functions if isinstance(function, Judge)]

    def shown(self, groups: Sequence[Group]) -> list[tuple[str, float]]:
        """The text of the first completion of the first examples' groups, and what it earned.

        That is the reward which says right or wrong where the task marks one, else the sum.
        """
        rewarded = self.rewarded(range(len(groups)), groups)
        texts = [self._decode(group.completions[0].token_ids) for group in groups]
        earned = [
            each.values[self._success] if self._success else each.rewards for each in rewarded
        ]
        return [(text, float(each[0])) for text, each in zip(texts, earned, strict=True)]

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
    completions = tuple(
        replace(c, loss_mask=np.zeros(len(c.token_ids), bool)) if bad else c
        for c, bad in zip(group.completions, failed, strict=True)
    )
    messages = {f.completion: f.message for f in scores.failures}
    places = range(part.start, part.stop)
    return Rewarded(
        replace(group, completions=completions),
        np.where(failed, np.float32(np.nan), rewards),
        values,
        tuple(messages[n] for n, bad in zip(places, failed, strict=True) if bad),
    )
