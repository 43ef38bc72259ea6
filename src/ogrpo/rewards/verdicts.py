"""From the reply to a call to a verdict on each completion, and from verdicts to scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ogrpo.rewards.calls import UNASKED, CallBounds, RewardCall
from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import Failure, Scores
from ogrpo.system.worker import Reply

Verdict = float | Failure | None
"""Of one reward on one completion: None where it did not judge."""


def verdicts(call: RewardCall, reply: Reply, bounds: CallBounds) -> list[Verdict]:
    """Return a verdict on each completion of a call."""
    if reply.kind is None:
        return [_verdict(call, call.first + i, value) for i, value in enumerate(reply.result)]
    failure = Failure(call.reward.name, call.first, reply.kind, _message(call, reply, bounds))
    return [failure._replace(completion=call.first + i) for i in range(call.count)]


def summed(rewards: Sequence[Reward], found: Sequence[Sequence[Verdict]]) -> Scores:
    """Return the weighted sum over the rewards of their verdicts on each completion.

    A completion fails, and is not worth 0, if a reward that counts failed, if none judged it, or if
    the sum is too large.
    """
    values = {
        reward.name: np.array([v if isinstance(v, float) else np.nan for v in row], np.float32)
        for reward, row in zip(rewards, found, strict=True)
    }
    failures = [v for row in found for v in row if isinstance(v, Failure)]
    counting = [reward for reward in rewards if reward.weight != 0.0]
    weighted = np.stack([r.weight * values[r.name].astype(np.float64) for r in counting])
    total = np.where(np.all(np.isnan(weighted), axis=0), np.nan, np.nansum(weighted, axis=0))
    names = {reward.name for reward in counting}
    told = {f.completion for f in failures if f.reward in names}
    bad = np.flatnonzero(~(np.abs(total) <= np.finfo(np.float32).max)).tolist()
    failures += [_unusable(counting, i, total[i]) for i in bad if i not in told]
    failed = np.zeros(total.shape, bool)
    failed[[*told, *bad]] = True
    return Scores(np.where(failed, 0.0, total).astype(np.float32), values, failed, tuple(failures))


def _verdict(call: RewardCall, index: int, value: Any) -> Verdict:
    if isinstance(value, float):
        return value
    if value["kind"] == "none":
        return None
    message = f"{call.reward} {value['message']} for completion {index}"
    wrong = f"{message}, which is no finite float32 number"
    return Failure(call.reward.name, index, value["kind"], wrong)


def _message(call: RewardCall, reply: Reply, bounds: CallBounds) -> str:
    over = f" for {call.count} completions at once" if call.count > 1 else ""
    what = {
        "timeout": f"did not end within {bounds.seconds:g} s of wall time{over}",
        "memory": f"ran out of its {bounds.memory_gib:g} GiB of memory{over}: {reply.message}",
        "died": f"was not done{over}: {reply.message}",
    }
    message = what.get(reply.kind or "", reply.message)
    if reply is UNASKED:
        message = (
            "was not asked for this completion: its call over all of them failed, and too many of "
            "the others, asked alone, overran or broke their process"
        )
    return f"{call.reward} {message}"


def _unusable(rewards: Sequence[Reward], index: int, total: float) -> Failure:
    names = ", ".join(map(str, rewards))
    if np.isnan(total):
        message = f"{names} gave None for completion {index}, which no reward judged"
        return Failure(rewards[0].name, index, "none", message)
    message = (
        f"the weighted sum of {names} for completion {index} is {total}, too large for float32"
    )
    return Failure(rewards[0].name, index, "not finite", message)
