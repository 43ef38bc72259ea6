"""What the replay buffer answers: a draw of groups, and the receipt of an insertion."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.replay.columns import Columns, Experience, Int64Array, pad, unpack
from ogrpo.protocol import FloatArray


@dataclass(frozen=True, eq=False)
class Draw:
    """`N` whole groups in the order they were drawn.

    Attributes:
        ids: int64 `[N]`, the buffer's number for each group, in the order of insertion from 0.
        columns: the groups.
        uses: int64 `[N]`, draws of each group before this one; 0 is fresh.
        staleness: int64 `[N]`, policy versions between the newest heard of and the group's oldest.
    """

    ids: Int64Array
    columns: Columns
    uses: Int64Array
    staleness: Int64Array

    @property
    def rewards(self) -> FloatArray:
        """float32 `[N, G]`."""
        return self.columns.rewards

    @property
    def problems(self) -> Int64Array:
        """int64 `[N]`."""
        return self.columns.problems

    @property
    def experiences(self) -> list[Experience]:
        """The groups as objects; for speed use `batch`."""
        return unpack(self.columns)

    def batch(
        self, prompt_length: int, completion_length: int, *, pad_id: int = 0
    ) -> Batch[np.ndarray]:
        """Pad the groups; see `pad_groups`, whose result this is."""
        return pad(self.columns, prompt_length, completion_length, pad_id=pad_id)


@dataclass(frozen=True, eq=False)
class Receipt:
    """What became of an insertion.

    Attributes:
        ids: int64 `[N]`, -1 where a group was refused. A group is acknowledged, that is, on disk,
            once `ReplayBuffer.acknowledged` exceeds its id.
        refused: groups refused, by reason.
    """

    ids: Int64Array
    refused: Mapping[str, int]
