"""Noise in the training rewards: a share of them, each 0 or 1, told the other way round."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogrpo.loop.state import stream_seed
from ogrpo.rewards.scores import Scores
from ogrpo.rollout.collection import Request

FLIPPED = "flipped"
"""What the share of a step's rewards that were flipped is called among its rewards."""


def drawn(
    request: Request, places: Sequence[int], sizes: Sequence[int], *, share: float
) -> NDArray[np.bool_]:
    """Which completions at these places of a request are flipped, one after the other.

    It depends on the request's seed and on their places alone: not on how a batch is cut into
    calls, or on when a call is answered.
    """
    rng = np.random.default_rng(stream_seed(request.seed, "flips", request.step))
    lots = rng.random((len(request.problems), max(sizes, default=0))) < share
    parts = [lots[place, :size] for place, size in zip(places, sizes, strict=True)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def flipped(scores: Scores, chosen: NDArray[np.bool_]) -> Scores:
    """The scores with 1 - r for r where chosen; what no reward could judge stays as it is.

    The value `flipped` of a completion is 1 where its reward is not its own any more.

    Raises:
        ValueError: a reward is neither 0 nor 1, or a reward is called `flipped`.
    """
    known = scores.rewards[~scores.failed]
    if (strange := known[(known != 0) & (known != 1)]).size:
        raise ValueError(
            f"reward.flip exchanges 0 and 1, but a completion has the reward {strange[0]:g}: leave"
            " it out, or give rewards of 0 and 1"
        )
    if FLIPPED in scores.values:
        raise ValueError(
            f"a reward is called {FLIPPED!r}, as the share that reward.flip counts is: rename it"
        )
    turned = chosen & ~scores.failed
    rewards = np.where(turned, 1 - scores.rewards, scores.rewards).astype(np.float32)
    told = np.where(scores.failed, np.nan, turned).astype(np.float32)
    return scores._replace(rewards=rewards, values={**scores.values, FLIPPED: told})
