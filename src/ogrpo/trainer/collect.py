"""Fresh groups: bought from an engine, judged, ready to be stored."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.replay import Experience
from ogrpo.rollout.collection import Collector, Request
from ogrpo.rollout.protocol import Group
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import Parts, RewardFn, Stopwatch, Task, stream_seed


@dataclass(frozen=True)
class Collected:
    """One batch of judged groups."""

    experiences: Sequence[Experience]
    groups: Batch[np.ndarray]
    rewards: NDArray[np.float32]  # [N, G]
    truncated: int
    """Completions that did not end themselves."""

    @property
    def tokens(self) -> int:
        """Completion tokens drawn."""
        return int(self.groups.completion_mask.sum())


def request_at(parts: Parts, schedule: Schedule, step: int) -> Request:
    """The prompts of a step, which depend on the seed and the step alone."""
    prompts = parts.task.train.prompts
    stream = PromptStream(len(prompts), schedule.prompts, parts.seed)
    problems = [int(n) for n in stream.indices(step)]
    seed = stream_seed(parts.seed, "rollout", step)
    return Request(step, problems, [prompts[n] for n in problems], seed)


def collect(parts: Parts, collector: Collector, step: int, watch: Stopwatch) -> Collected:
    """Takes one batch of groups from the collector and has it judged."""
    with watch("rollout"):
        taken = collector.take(step)
    task, groups, problems = parts.task, taken.groups, taken.request.problems
    with watch("reward"):
        rewards = judge(task, groups, [task.train.answers[n] for n in problems])
    judged = zip(groups, rewards, problems, strict=True)
    truncated = sum(c.finish_reason != "stop" for group in groups for c in group.completions)
    return Collected(
        [Experience(*group) for group in judged],
        pad_groups(groups, task.prompt_length, task.completion_length, rewards=rewards),
        rewards,
        truncated,
    )


def judge(
    task: Task, groups: Sequence[Group], answers: Sequence[str], *, reward: RewardFn | None = None
) -> NDArray[np.float32]:
    """Rewards `[N, G]`, by the task's own reward unless another is given."""
    score = reward or task.reward
    rewards = [
        [score(task.decode(c.token_ids), c.finish_reason, answer) for c in group.completions]
        for group, answer in zip(groups, answers, strict=True)
    ]
    return np.array(rewards, np.float32)
