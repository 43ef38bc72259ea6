"""The buffer's groups by their number, in the order of insertion, with what draws go by."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.data.replay.columns import Columns, Int64Array, join, pad, split

SMALLEST = 64


class Features(NamedTuple):
    """The values that a priority is computed from, each `[n]`."""

    staleness: Int64Array
    uses: Int64Array
    spread: npt.NDArray[np.float64]
    """Mean over the group of |reward - group mean|."""
    max_advantage: npt.NDArray[np.float64]
    """Largest reward - group mean."""
    problem: Int64Array


@dataclass(eq=False)
class StoredGroup:
    """One group of the buffer."""

    columns: Columns
    oldest: int
    """The oldest policy version among the completions."""
    spread: float
    max_advantage: float
    problem: int
    uses: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(column.nbytes for column in self.columns)


@dataclass(frozen=True, eq=False)
class Draw:
    """`N` whole groups in the order they were drawn.

    Attributes:
      ids: int64 `[N]`, the buffer's number for each group, in the order of insertion from 0.
      columns: the groups.
      uses: int64 `[N]`, draws of each group before this one; 0 is fresh.
      staleness: int64 `[N]`, policy versions between the buffer's newest and the group's oldest.
    """

    ids: Int64Array
    columns: Columns
    uses: Int64Array
    staleness: Int64Array

    @property
    def problems(self) -> Int64Array:
        """int64 `[N]`."""
        return self.columns.problems

    def batch(self, prompt_length: int, completion_length: int) -> Batch[np.ndarray]:
        """Pads the groups, as `pad_groups` does."""
        return pad(self.columns, prompt_length, completion_length)


class Table:
    """The groups of one buffer, and the counters that draws depend on.

    Attributes:
      groups: those held, by ascending id.
      next_id: id of the next group inserted.
      cursor: one more than the id drawn last.
      version: the newest policy version, of `ReplayBuffer.expire` or of a group.
      capacity: a power of two that has covered the ids from the oldest group held to the newest;
        draws by weight go through the groups in the order of `id % capacity`.
      nbytes: bytes of the groups' arrays.
    """

    def __init__(self, capacity: int = SMALLEST) -> None:
        self.groups: dict[int, StoredGroup] = {}
        self.next_id = self.cursor = self.version = self.nbytes = 0
        self.capacity = capacity

    @property
    def ids(self) -> Int64Array:
        """Ids of the groups held, oldest first."""
        return np.fromiter(self.groups, np.int64, len(self.groups))

    def append(self, ids: Int64Array, columns: Columns) -> None:
        """Stores copies of groups under ascending `ids`, none below `next_id`."""
        judged = ~np.isnan(columns.rewards)
        rewards = np.where(judged, columns.rewards, 0).astype(np.float64)
        count = np.maximum(judged.sum(axis=1, keepdims=True), 1)
        advantages = np.where(judged, rewards - rewards.sum(axis=1, keepdims=True) / count, 0)
        features = zip(
            columns.policy_versions.min(axis=1).tolist(),
            (np.abs(advantages).sum(axis=1) / count[:, 0]).tolist(),
            advantages.max(axis=1).tolist(),
            columns.problems.tolist(),
            strict=True,
        )
        for id_, part, values in zip(ids.tolist(), split(columns), features, strict=True):
            self.groups[id_] = stored = StoredGroup(part, *values)
            self.nbytes += stored.nbytes
        self.next_id = int(ids[-1]) + 1
        span = self.next_id - next(iter(self.groups))
        self.capacity = max(self.capacity, 1 << (span - 1).bit_length())

    def remove(self, ids: Int64Array) -> None:
        """Removes groups that are held."""
        self.nbytes -= sum(self.groups.pop(id_).nbytes for id_ in ids.tolist())

    def read(self, ids: Int64Array) -> Draw:
        """Returns copies of groups that are held, in the order of `ids`."""
        features = self.features(ids)
        columns = join([self.groups[id_].columns for id_ in ids.tolist()])
        return Draw(ids, columns, features.uses, features.staleness)

    def features(self, ids: Int64Array) -> Features:
        """Returns the features of groups that are held."""
        groups = [self.groups[id_] for id_ in ids.tolist()]
        return Features(
            staleness=self.version - np.array([one.oldest for one in groups], np.int64),
            uses=np.array([one.uses for one in groups], np.int64),
            spread=np.array([one.spread for one in groups], np.float64),
            max_advantage=np.array([one.max_advantage for one in groups], np.float64),
            problem=np.array([one.problem for one in groups], np.int64),
        )
