"""How often an answer wins the vote of k of n samples: exact, by counting.

Drawing k of n samples without return is drawing each by itself with chance k / n, given that k are
drawn. The numbers of votes of different answers are then independent binomials, which a recursion
over the answers adds up; all terms are positive, so that nothing cancels in floating point.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=1 << 14)
def winning_chance(own: int, others: tuple[int, ...], silent: int, k: int) -> float:
    """Chance that an answer is the one with the most votes among k samples, ties split evenly.

    Args:
        own: samples that gave this answer.
        others: samples that gave each other answer.
        silent: samples without an answer, which do not vote.
        k: how many of all these are drawn.
    """
    total = own + sum(others) + silent
    share = k / total
    mine = _binomial(own, share)
    wins = 0.0
    for votes in range(1, min(own, k) + 1):
        rivals = _rivals(others, silent, k - votes, votes, share)
        wins += mine[votes] * float(rivals @ (1 / np.arange(1, len(rivals) + 1)))
    return wins / float(_binomial(total, share)[k])


def _rivals(
    others: tuple[int, ...], silent: int, rest: int, votes: int, share: float
) -> NDArray[np.float64]:
    """Chance that `rest` others are drawn, none with over `votes` votes, by how many tie."""
    state = np.zeros((rest + 1, rest // votes + 1))  # [drawn so far, answers that tie]
    state[0, 0] = 1.0
    for size in others:
        chances = _binomial(size, share)
        after = np.zeros_like(state)
        for given in range(min(size, votes - 1, rest) + 1):
            after[given:] += chances[given] * state[: rest + 1 - given]
        if min(size, rest) >= votes:
            after[votes:, 1:] += chances[votes] * state[: rest + 1 - votes, :-1]
        state = after
    quiet = _binomial(silent, share)
    drawn = np.arange(min(silent, rest) + 1)
    return quiet[drawn] @ state[rest - drawn]


@lru_cache(maxsize=1 << 12)
def _binomial(size: int, share: float) -> NDArray[np.float64]:
    chances = np.ones(1)
    for _ in range(size):
        chances = np.convolve(chances, (1 - share, share))
    return chances
