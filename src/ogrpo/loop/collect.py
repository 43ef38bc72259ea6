"""Fresh groups: asked for by step, taken from the collector with their rewards, stored."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.config.schedule import Schedule
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.replay import Experience
from ogrpo.loop.judge import RewardError
from ogrpo.loop.state import LoopState, Parts, stream_seed
from ogrpo.rollout.collection import Collector, Request, Rewarded


@dataclass(frozen=True)
class Fresh:
    """One batch of rewarded groups."""

    experiences: Sequence[Experience]
    groups: Batch[np.ndarray]
    values: dict[str, float]
    """The mean of each reward over the completions that it judged, by its name."""
    truncated: int
    """Completions that did not end themselves."""
    failures: tuple[str, ...]
    """A message for each completion that could not be judged."""

    @property
    def tokens(self) -> int:
        """Completion tokens drawn."""
        return int(self.groups.completion_mask.sum())

    @property
    def judged_rewards(self) -> NDArray[np.float32]:
        """Rewards of the completions that were judged."""
        return self.groups.rewards[~np.isnan(self.groups.rewards)]


def request_at(parts: Parts, schedule: Schedule, step: int) -> Request:
    """The prompts of a step, which depend on the seed and the step alone."""
    prompts = parts.prompts.train
    stream = PromptStream(len(prompts), schedule.prompts, parts.seed)
    problems = [int(n) for n in stream.indices(step)]
    seed = stream_seed(parts.seed, "rollout", step)
    return Request(step, problems, [prompts[n] for n in problems], seed)


def take(parts: Parts, collector: Collector, step: int) -> Fresh:
    """One batch of groups, sampled and rewarded by the collector's workers.

    Raises:
        RewardError: not one completion could be judged.
    """
    taken = collector.take(step)
    groups, rewarded = taken.groups, taken.rewarded
    failures = tuple(message for each in rewarded for message in each.failures)
    if len(failures) >= sum(len(group.completions) for group in groups):
        raise RewardError(f"step {step}: no completion could be judged; first: {failures[0]}")
    judged = zip(rewarded, taken.request.problems, strict=True)
    rewards = np.stack([each.rewards for each in rewarded])
    return Fresh(
        experiences=[Experience(each.group, each.rewards, n) for each, n in judged],
        groups=pad_groups(groups, parts.prompts.length, parts.sampling.max_tokens, rewards=rewards),
        values=mean_values(rewarded),
        truncated=sum(c.finish_reason != "stop" for g in groups for c in g.completions),
        failures=failures,
    )


def mean_values(rewarded: Sequence[Rewarded]) -> dict[str, float]:
    """The mean of each reward over the completions that it judged; NaN where there are none."""
    names = rewarded[0].values
    return {name: _mean([each.values[name] for each in rewarded]) for name in names}


def _mean(values: Sequence[NDArray[np.float32]]) -> float:
    known = np.concatenate(values)
    known = known[~np.isnan(known)]
    return float(known.mean(dtype=np.float64)) if known.size else float("nan")


def inserted(state: LoopState, fresh: Fresh | None, parts: Parts) -> LoopState:
    """The fresh groups in the buffer, and counted."""
    if fresh is None:
        return state
    state.buffer.insert(fresh.experiences)
    longest = int(fresh.groups.completion_mask.sum(axis=-1).max())
    return replace(
        state,
        completions=state.completions + fresh.groups.rewards.size,
        tokens=state.tokens + fresh.tokens,
        rollout_flops=state.rollout_flops + parts.costs.rollout(longest),
    )
