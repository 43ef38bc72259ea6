"""Rewards of the steps of a batch's completions, at the tokens where the steps end."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.loop.judge import Decode
from ogrpo.tasks import Example
from ogrpo.tasks.columns import SOLUTION_COLUMN
from ogrpo.tasks.step_rewards import line_rewards


class StepJudge:
    """Judges completions line by line; it remembers nothing, so that stored groups need no column.

    Args:
      examples: by the number of their problem, with worked solutions.
      decode: token ids -> text.
    """

    def __init__(self, examples: Sequence[Example], decode: Decode) -> None:
        self._examples, self._decode = examples, decode

    def __call__(self, batch: Batch[np.ndarray], problems: NDArray[np.int64]) -> Batch[np.ndarray]:
        """The batch with the rewards of its steps, its groups being of these problems."""
        rewards = np.zeros(batch.completion_ids.shape, np.float32)
        ends = np.zeros(batch.completion_ids.shape, bool)
        for n, problem in enumerate(problems):
            solution = self._examples[problem].columns[SOLUTION_COLUMN]
            for g, length in enumerate(batch.completion_mask[n].sum(axis=-1)):
                ids = batch.completion_ids[n, g, :length]
                for place, reward in self._steps(ids, solution):
                    rewards[n, g, place] += reward
                    ends[n, g, place] = True
        return batch._replace(step_rewards=rewards, step_ends=ends)

    def _steps(self, ids: NDArray[np.int32], solution: str) -> list[tuple[int, float]]:
        """The token that each step ends with, and what it earned."""

        def characters(place: int) -> int:
            return len(self._decode(ids[: place + 1]))

        steps = line_rewards(self._decode(ids), solution)
        return [
            (bisect_left(range(len(ids)), end, key=characters), reward) for end, reward in steps
        ]
