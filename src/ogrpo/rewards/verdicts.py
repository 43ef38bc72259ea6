"""From the reply to a call to a verdict on each completion, and from verdicts to scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ogrpo.rewards.calls import BROKEN_PROCESSES, UNASKED, Bounds, RewardCall
from ogrpo.rewards.process import Reply
from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import Failure, Scores

Verdict = float | Failure | None
"""Of one reward on one completion: None where it does not apply."""


def verdicts(call: RewardCall, reply: Reply, bounds: Bounds) -> list[Verdict]:
    """Return a verdict on each completion of a call."""
    if reply.kind is None:
        return [_verdict(call, call.first + i, value) for i, value in enumerate(reply.result)]
    kind, message = reply.kind, _message(call, reply, bounds)
    indices = range(call.first, call.first + call.count)
    return [Failure(call.reward.name, index, kind, message) for index in indices]


def summed(rewards: Sequence[Reward], found: Sequence[Sequence[Verdict]]) -> Scores:
    """Return the weighted sum over the rewards of their verdicts on each completion.

    A completion without a number from any reward that counts has failed: it is not worth 0.
    """
    values = {
        reward.name: np.array([v if isinstance(v, float) else np.nan for v in row], np.float32)
        for reward, row in zip(rewards, found, strict=True)
    }
    failures = [v for row in found for v in row if isinstance(v, Failure)]
    counting = [reward for reward in rewards if reward.weight != 0.0]
    weights = {reward.name: reward.weight for reward in counting}
    applies = np.any([np.isfinite(values[name]) for name in weights], axis=0)
    failed = ~applies
    failed[[f.completion for f in failures if f.reward in weights]] = True
    told = {f.completion for f in failures if f.reward in weights}
    failures += [_without(counting, i) for i in np.flatnonzero(failed).tolist() if i not in told]
    parts = [w * np.nan_to_num(values[name].astype(float)) for name, w in weights.items()]
    total = np.where(failed, 0.0, np.sum(parts, axis=0)).astype(np.float32)
    return Scores(total, values, failed, tuple(failures))


def _verdict(call: RewardCall, index: int, value: Any) -> Verdict:
    if isinstance(value, float):
        return value
    if value["kind"] == "none" and call.reward.optional:
        return None
    hint = (
        "; return a number, or say where the reward may not apply: Reward(..., optional=True)"
        if value["kind"] == "none"
        else ", which is no finite float32 number"
    )
    message = f"{call.reward} {value['message']} for completion {index}{hint}"
    return Failure(call.reward.name, index, value["kind"], message)


def _message(call: RewardCall, reply: Reply, bounds: Bounds) -> str:
    over = f" for {call.count} completions at once" if call.count > 1 else ""
    what = {
        "timeout": f"did not end within {bounds.seconds:g} s of wall time{over}",
        "memory": f"ran out of its {bounds.memory_gib:g} GiB of memory{over}: {reply.message}",
        "died": f"was not done{over}: {reply.message}",
    }
    message = what.get(reply.kind or "", reply.message)
    if reply is UNASKED:
        message = (
            "was not asked for this completion: its call over all of them failed, and so did "
            f"{BROKEN_PROCESSES} others alone, which overran or broke their process"
        )
    return f"{call.reward} {message}"


def _without(counting: Sequence[Reward], index: int) -> Failure:
    names = ", ".join(repr(reward.name) for reward in counting)
    message = f"no reward applies to completion {index}: {names} gave None"
    return Failure(counting[0].name, index, "none", message)
