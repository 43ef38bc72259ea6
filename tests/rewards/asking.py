"""Requests and pools as the tests of rewards make them."""

from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.scores import ScoreRequest


def request(*texts, prompt="2 + 2?", **columns):
    return ScoreRequest.of_group(
        prompt,
        texts,
        completion_ids=[[i] for i in range(len(texts))],
        finish_reasons=["stop"] * len(texts),
        columns=columns,
    )


def pool(*rewards, **options):
    defaults = {"processes": 2, "seconds": 20.0, "memory_gib": 2.0}
    return RewardPool(list(rewards), **{**defaults, **options})
