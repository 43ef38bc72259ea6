"""Requests, pools and a verifier as the tests of rewards make them."""

import pytest

from ogrpo.rewards import math
from ogrpo.rewards.bounded import BoundedVerifier
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


class KeptVerifier(BoundedVerifier):
    """A verifier whose processes, which take seconds to start, live until the tests end."""

    def close(self):
        pass


VERIFIER = KeptVerifier(seconds=0.6, processes=2, wall_seconds=60.0)


@pytest.fixture
def one_verifier(monkeypatch):
    """Lets all that math-verify compares share the processes of one verifier."""
    monkeypatch.setattr(math, "BoundedVerifier", lambda *_, **__: VERIFIER)
    return VERIFIER
