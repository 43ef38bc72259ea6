"""Rewards of completions: decoded, judged by the task's rewards, and laid beside their groups."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.loop.parts import HeldoutVerdicts, stream_seed
from ogrpo.protocol import Group, IntArray
from ogrpo.rewards.judge import Judge
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.scores import FailureLog, ScoreRequest, Scores
from ogrpo.rollout.collection import Request, Rewarded
from ogrpo.tasks import Example
from ogrpo.tasks.example import SOLUTION_COLUMN
from ogrpo.tasks.problems import line_rewards

Decode = Callable[[IntArray], str]
FLIPPED = "flipped"
"""Name, among a step's rewards, of the share of them that were flipped."""


class RewardError(RuntimeError):
    """Raised for rewards that a run cannot go on with."""


class GroupJudge:
    """Rewards completions by a task's rewards; several threads may call it at once.

    A completion that a reward could not judge carries no loss, and the mean of its group's others
    stands in for its reward, so that it moves no advantage. It is counted, and the first one of
    each kind is logged.

    Args:
      examples: by the number of their prompt.
      decode: token ids -> the text that rewards read.
      flip: chance that the reward of a training completion is flipped.
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
        self.pool, self._examples, self._decode = pool, examples, decode
        self._flip, self._success = flip, success
        self._failures = FailureLog()

    def __call__(
        self, request: Request, places: Sequence[int], groups: Sequence[Group]
    ) -> list[Rewarded]:
        """Rewards the groups at these places of a request."""
        scores = self._scores([request.problems[place] for place in places], groups)
        if self._flip:
            sizes = [len(group.completions) for group in groups]
            scores = flip(scores, flips_at(request, places, sizes, share=self._flip))
        return _by_group(groups, scores)

    def rewarded(self, problems: Sequence[int], groups: Sequence[Group]) -> list[Rewarded]:
        """Rewards the groups of these problems, all at once."""
        return _by_group(groups, self._scores(problems, groups))

    def heldout(self, groups: Sequence[Group]) -> HeldoutVerdicts:
        """Judges the groups of all examples, in order.

        Raises:
          RewardError: no completion has a verdict.
        """
        judges = [r.function for r in self.pool.rewards if isinstance(r.function, Judge)]
        before = [each.counts for each in judges]
        scores = self._scores(range(len(groups)), groups)
        if scores.failed.all():
            first = scores.failures[0].message
            raise RewardError(f"no answer to a held-out prompt could be judged; first: {first}")
        shares = [
            (each.counts.unparsable - then.unparsable) / (each.counts.total - then.total)
            for then, each in zip(before, judges, strict=True)
            if each.counts.total > then.total
        ]
        rewards = np.where(scores.failed, np.float32(np.nan), scores.rewards)
        size = (len(groups), -1)
        truncated = [c.finish_reason != "stop" for group in groups for c in group.completions]
        return HeldoutVerdicts(
            rewards=rewards.reshape(size),
            values={name: each.reshape(size) for name, each in scores.values.items()},
            success=self._success,
            unparsable=max(shares, default=None),
            truncated=float(np.mean(truncated)),
        )

    def shown(self, groups: Sequence[Group]) -> list[tuple[str, dict[str, float]]]:
        """Returns the text of each group's first completion, and its rewards, the sum as "".

        Args:
          groups: of the first examples, in order.
        """
        rewarded = self.rewarded(range(len(groups)), groups)
        every = [{"": each.rewards, **each.values} for each in rewarded]
        rewards = [{name: float(values[0]) for name, values in each.items()} for each in every]
        texts = [self._decode(group.completions[0].token_ids) for group in groups]
        return [*zip(texts, rewards, strict=True)]

    def _scores(self, problems: Sequence[int], groups: Sequence[Group]) -> Scores:
        """Scores completions one after the other; logs the first failure of each kind."""
        requests = [
            ScoreRequest.of_group(
                self._examples[n].prompt,
                [self._decode(c.token_ids) for c in group.completions],
                completion_ids=[c.token_ids.tolist() for c in group.completions],
                finish_reasons=[c.finish_reason for c in group.completions],
                columns=self._examples[n].columns,
            )
            for n, group in zip(problems, groups, strict=True)
        ]
        lists = ("prompts", "completions", "completion_ids", "finish_reasons")
        joined = {name: [x for each in requests for x in getattr(each, name)] for name in lists}
        columns = {
            name: [x for each in requests for x in each.columns.get(name, [None] * len(each))]
            for name in dict.fromkeys(name for each in requests for name in each.columns)
        }
        scores = self.pool.score(ScoreRequest(**joined, columns=columns))
        self._failures.add(scores.failures)
        return scores


def _by_group(groups: Sequence[Group], scores: Scores) -> list[Rewarded]:
    """Cuts scores into those of each group; completions that were not judged carry no loss."""
    messages = {each.completion: each.message for each in reversed(scores.failures)}
    rewarded, begin = [], 0
    for group in groups:
        part = slice(begin, begin + len(group.completions))
        failed, rewards = scores.failed[part], scores.rewards[part]
        if failed.any():
            completions = tuple(
                replace(c, loss_mask=np.zeros(len(c.token_ids), bool)) if bad else c
                for c, bad in zip(group.completions, failed, strict=True)
            )
            group = replace(group, completions=completions)
            rewards = np.where(failed, np.float32(np.nan), rewards)
        values = {name: each[part] for name, each in scores.values.items()}
        failures = tuple(messages[begin + n] for n, bad in enumerate(failed) if bad)
        rewarded.append(Rewarded(group, rewards, values, failures))
        begin = part.stop
    return rewarded


def flips_at(
    request: Request, places: Sequence[int], sizes: Sequence[int], *, share: float
) -> NDArray[np.bool_]:
    """Draws which completions at these places of a request are flipped, one after the other.

    They depend on the request's seed and on the places alone: not on how a batch is cut into calls,
    or on when a call is answered.
    """
    rng = np.random.default_rng(stream_seed(request.seed, "flips", request.step))
    draws = rng.random((len(request.problems), max(sizes, default=0))) < share
    parts = [draws[place, :size] for place, size in zip(places, sizes, strict=True)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def flip(scores: Scores, flips: NDArray[np.bool_]) -> Scores:
    """Returns the scores with 1 - r for r at `flips`; those that no reward could judge stay.

    The value `flipped` of a completion is 1 where its reward was changed.

    Raises:
      RewardError: a reward is neither 0 nor 1, or a reward is called `flipped`.
    """
    judged = scores.rewards[~scores.failed]
    if (others := judged[(judged != 0) & (judged != 1)]).size:
        raise RewardError(
            f"reward.flip exchanges 0 and 1, but a completion has the reward {others[0]:g}: leave"
            " it out, or give rewards of 0 and 1"
        )
    if FLIPPED in scores.values:
        raise RewardError(
            f"a reward is called {FLIPPED!r}, as the share that reward.flip counts is: rename it"
        )
    flips = flips & ~scores.failed
    rewards = np.where(flips, 1 - scores.rewards, scores.rewards).astype(np.float32)
    flipped = np.where(scores.failed, np.nan, flips).astype(np.float32)
    return scores._replace(rewards=rewards, values={**scores.values, FLIPPED: flipped})


def judge_steps(
    examples: Sequence[Example],
    decode: Decode,
    batch: Batch[np.ndarray],
    problems: NDArray[np.int64],
) -> Batch[np.ndarray]:
    """Returns the batch with the rewards of completions' lines, at the tokens where they end.

    It remembers nothing, so that stored groups need no column.

    Args:
      examples: by the number of their problem, with worked solutions.
      batch: its groups are of `problems`.
    """
    rewards = np.zeros(batch.completion_ids.shape, np.float32)
    ends = np.zeros(batch.completion_ids.shape, bool)
    for n, problem in enumerate(problems):
        solution = examples[problem].columns[SOLUTION_COLUMN]
        for g, length in enumerate(batch.completion_mask[n].sum(axis=-1)):
            ids = batch.completion_ids[n, g, :length]
            for end, reward in line_rewards(decode(ids), solution):
                token = bisect_left(
                    range(length), end, key=lambda t, ids=ids: len(decode(ids[: t + 1]))
                )
                rewards[n, g, token] += reward
                ends[n, g, token] = True
    return batch._replace(step_rewards=rewards, step_ends=ends)
