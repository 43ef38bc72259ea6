"""The buffer's row for each group, in a ring.

Groups are numbered in the order of insertion. Group `id` lies at place `id % capacity`; `capacity`
is a power of two that covers the ids from the oldest live group to the newest.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.data.replay.columns import PER_GROUP, Columns, Int64Array
from ogrpo.protocol import BoolArray

SMALLEST = 64


class Rows(NamedTuple):
    """Columns of the ring, each `[capacity, ...]`."""

    alive: BoolArray
    uses: Int64Array
    problems: Int64Array
    oldest: Int64Array  # the oldest policy version among the completions
    spread: npt.NDArray[np.float64]  # mean over the group of |reward - group mean|
    lift: npt.NDArray[np.float64]  # largest reward - group mean
    bytes: Int64Array
    tokens: npt.NDArray[np.object_]  # ids of the prompt, then of its completions, one array each
    log_probs: npt.NDArray[np.object_]  # of the completions
    prompt_lengths: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]  # [capacity, G], as all below
    policy_versions: npt.NDArray[np.int32]
    temperatures: npt.NDArray[np.float64]
    finish_reasons: npt.NDArray[np.uint8]
    rewards: npt.NDArray[np.float32]


class Features(NamedTuple):
    """The values that a priority is computed from, each `[n]`."""

    staleness: Int64Array
    uses: Int64Array
    spread: npt.NDArray[np.float64]
    lift: npt.NDArray[np.float64]
    problem: Int64Array


class Table:
    """The ring, its bounds and the counters that draws depend on.

    Attributes:
        head: id of the oldest live group; `next_id` if there is none.
        next_id: id of the next group inserted.
        cursor: one more than the id drawn last.
        version: the newest policy version, of `ReplayBuffer.expire` or of a group.
        live: number of live groups.
    """

    def __init__(self, group_size: int, capacity: int = SMALLEST) -> None:
        self.rows = _empty_rows(group_size, capacity)
        self.head = self.next_id = self.cursor = self.version = self.live = 0

    @property
    def capacity(self) -> int:
        """Places of the ring."""
        return len(self.rows.alive)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(column[:1].nbytes for column in self.rows)

    def places(self, ids: Int64Array) -> Int64Array:
        """Returns the places of groups."""
        return ids & (self.capacity - 1)

    def ids(self, places: Int64Array) -> Int64Array:
        """Returns the groups at `places`."""
        return self.head + ((places - self.head) & (self.capacity - 1))

    def append(self, ids: Int64Array, columns: Columns, n_bytes: Int64Array) -> None:
        """Enters groups under ascending `ids`, none below `next_id`; ids left out stay dead.

        `n_bytes` are those of each group outside the table, int64 `[N]`.
        """
        if self.live == 0:
            self.head = int(ids[0])
        self._cover(int(ids[-1]) + 1)
        judged = ~np.isnan(columns.rewards)
        rewards = np.where(judged, columns.rewards, 0).astype(np.float64)
        count = np.maximum(judged.sum(axis=1, keepdims=True), 1)
        advantages = np.where(judged, rewards - rewards.sum(axis=1, keepdims=True) / count, 0)
        values = {
            **{name: getattr(columns, name) for name in PER_GROUP},
            "alive": True,
            "uses": 0,
            "oldest": columns.policy_versions.min(axis=1),
            "spread": np.abs(advantages).sum(axis=1) / count[:, 0],
            "lift": advantages.max(axis=1),
            "bytes": n_bytes + self.row_bytes,
        }
        places = self.places(ids)
        for name, value in values.items():
            getattr(self.rows, name)[places] = value
        self.next_id, self.live = int(ids[-1]) + 1, self.live + len(ids)

    def remove(self, ids: Int64Array) -> None:
        """Removes live groups."""
        places = self.places(ids)
        self.rows.alive[places] = False
        self.rows.tokens[places] = self.rows.log_probs[places] = None
        self.live -= len(ids)
        first = self.first(self.head, self.next_id, 1)
        self.head = int(first[0]) if len(first) else self.next_id

    def seek(self, next_id: int) -> None:
        """Sets the id of the next group."""
        self.next_id = next_id
        self.head = self.head if self.live else next_id

    def first(self, start: int, stop: int, count: int) -> Int64Array:
        """Returns up to `count` of the oldest live ids in `[start, stop)`, oldest first."""
        span = 2 * count
        while True:
            end = min(start + span, stop)
            ids = np.arange(start, end)
            ids = ids[self.rows.alive[self.places(ids)]]
            if len(ids) >= count or end == stop:
                return ids[:count]
            span *= 2

    def all_live(self) -> Int64Array:
        """Returns the live ids, oldest first."""
        return self.first(self.head, self.next_id, max(self.live, 1))

    def features(self, places: Int64Array) -> Features:
        """Returns the features of the groups at `places`."""
        rows = self.rows
        return Features(
            staleness=self.version - rows.oldest[places],
            uses=rows.uses[places],
            spread=rows.spread[places],
            lift=rows.lift[places],
            problem=rows.problems[places],
        )

    def _cover(self, stop: int) -> None:
        """Enlarges the ring until it covers the ids from the oldest live group to `stop`."""
        if stop - self.head <= self.capacity:
            return
        ids, old = self.all_live(), self.rows
        before = self.places(ids)
        self.rows = _empty_rows(old.lengths.shape[1], 1 << (stop - self.head - 1).bit_length())
        for column, values in zip(self.rows, old, strict=True):
            column[self.places(ids)] = values[before]


def _empty_rows(group_size: int, capacity: int) -> Rows:
    def zeros(dtype: type, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((capacity, *shape), dtype)

    return Rows(
        alive=zeros(np.bool_),
        uses=zeros(np.int64),
        problems=zeros(np.int64),
        oldest=zeros(np.int64),
        spread=zeros(np.float64),
        lift=zeros(np.float64),
        bytes=zeros(np.int64),
        tokens=zeros(np.object_),
        log_probs=zeros(np.object_),
        prompt_lengths=zeros(np.int32),
        lengths=zeros(np.int32, group_size),
        policy_versions=zeros(np.int32, group_size),
        temperatures=zeros(np.float64, group_size),
        finish_reasons=zeros(np.uint8, group_size),
        rewards=zeros(np.float32, group_size),
    )
