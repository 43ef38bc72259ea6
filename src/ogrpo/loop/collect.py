"""Groups on their way into the buffer: fresh ones by step, and those of a log at the start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.data.logs import lacks_log_probs
from ogrpo.data.replay import Experience
from ogrpo.learner.checkpoint import content_hash
from ogrpo.learner.hosts import from_first
from ogrpo.learner.state import TrainState
from ogrpo.loop.certify import check_range
from ogrpo.loop.judge import RewardError
from ogrpo.loop.parts import BatchScoreFn, Parts, stream_seed
from ogrpo.loop.state import LoopState, first_arrays
from ogrpo.protocol import FloatArray
from ogrpo.rollout.collection import Collector, Request


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


def make_collector(state: LoopState, parts: Parts) -> Collector:
    """Collects the groups of the remaining steps, `lead` batches ahead.

    The batches on their way when a checkpoint was written are requested again from the same
    weights. This repeats them exactly for a lead of 0 or 1; for a longer one, they are a little
    fresher.
    """
    schedule, collection = parts.schedule, parts.collection
    last = schedule.warmup if schedule.offline else schedule.steps
    collector = collection.collector(
        collection.engine,
        partial(request_at, parts),
        collection.sampling,
        collection.reward_fn,
        steps=range(state.step, max(last, state.step)),
        limits=collection.limits,
        required=collection.required,
    )
    collector.publish(state.train.whole(state.server), state.server_version)
    collector.request(state.step + schedule.sync_offset - 1)
    return collector


def request_at(parts: Parts, step: int) -> Request:
    """Returns the prompts of a step, which depend on the seed and the step alone."""
    prompts = parts.prompts.train
    stream = PromptStream(len(prompts), parts.schedule.prompts, parts.seed)
    problems = [int(n) for n in stream.indices(step)]
    seed = stream_seed(parts.seed, "rollout", step)
    return Request(step, problems, [prompts[n] for n in problems], seed)


def take(parts: Parts, collector: Collector, step: int) -> Fresh:
    """Takes one batch of groups, sampled and rewarded by the collector's workers.

    Raises:
      RewardError: not one completion could be judged.
      ValueError: renewals are certified, and a reward lies outside the range of certificates.
    """
    taken = collector.take(step)
    groups, rewarded = taken.groups, taken.rewarded
    failures = tuple(message for each in rewarded for message in each.failures)
    if len(failures) >= sum(len(group.completions) for group in groups):
        raise RewardError(f"step {step}: no completion could be judged; first: {failures[0]}")
    judged = zip(rewarded, taken.request.problems, strict=True)
    longest = parts.prompts.length, parts.collection.sampling.max_tokens
    rewards, names = np.stack([each.rewards for each in rewarded]), rewarded[0].values
    if parts.certificate is not None:
        check_range(rewards)
    return Fresh(
        experiences=[Experience(each.group, each.rewards, n) for each, n in judged],
        groups=pad_groups(groups, *longest, rewards=rewards),
        values={name: _mean([each.values[name] for each in rewarded]) for name in names},
        truncated=sum(c.finish_reason != "stop" for g in groups for c in g.completions),
        failures=failures,
    )


def _mean(values: Sequence[NDArray[np.float32]]) -> float:
    """Returns the mean of the completions that were judged; NaN where there are none."""
    judged = np.concatenate(values)
    judged = judged[~np.isnan(judged)]
    return float(judged.mean(dtype=np.float64)) if judged.size else float("nan")


def insert(state: LoopState, fresh: Fresh | None, parts: Parts) -> LoopState:
    """Puts the fresh groups into the buffer, and counts them."""
    if fresh is None:
        return state
    state.buffer.insert(fresh.experiences)
    lengths = np.maximum(fresh.groups.completion_mask.sum(axis=-1).ravel(), 1)
    return replace(
        state,
        completions=state.completions + fresh.groups.rewards.size,
        tokens=state.tokens + fresh.tokens,
        rollout_flops=state.rollout_flops + parts.costs.rollout(lengths),
    )


def start(train: TrainState, parts: Parts) -> LoopState:
    """Returns the state before step 0: every policy is the initial one, the buffer has the log.

    Raises:
      ValueError: the buffer took in less of the log than a draw takes.
    """
    arrays = {"reference": None, **first_arrays(train, parts.method.reads), "train": train}
    buffer = parts.make_buffer(None)
    state = LoopState(**arrays, buffer=buffer, frozen_hash=content_hash(train.frozen))
    if parts.logged is None:
        return state
    groups, size = [*parts.logged.read()], parts.schedule.draw_size
    places = [n for n, one in enumerate(groups) if any(map(lacks_log_probs, one.group.completions))]
    score = partial(parts.logged.behavior, train.whole())
    lengths = parts.prompts.length, parts.collection.sampling.max_tokens
    computed = scored([groups[n] for n in places], score, lengths, together=size)
    for n in places:
        done = [(each, next(computed)) for each in groups[n].group.completions]
        filled = tuple(replace(c, log_probs=x) if lacks_log_probs(c) else c for c, x in done)
        groups[n] = replace(groups[n], group=replace(groups[n].group, completions=filled))
    buffer.insert(groups)
    counts = from_first(buffer.statistics)
    if counts["groups"] < (least := parts.logged.least):
        refused = " and ".join(
            f"{n:g} as {name.removeprefix('refused/')}"
            for name, n in counts.items()
            if name.startswith("refused/")
        )
        raise ValueError(
            f"the buffer took in {counts['groups']:g} of the log's {len(groups)} groups, of which"
            f" the run needs at least {least}, and refused {refused}: leave out the --replay option"
            " (max-staleness, refuse-failures or refuse-zero-variance), or give more rows"
        )
    return state


def scored(
    groups: Sequence[Experience], score: BatchScoreFn, lengths: tuple[int, int], *, together: int
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
