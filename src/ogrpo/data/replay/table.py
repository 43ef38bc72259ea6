"""What the buffer knows of each group beside its tokens: one row per group, in a ring.

Groups are numbered in the order of insertion. Group `id` lies at place `id % capacity`; `capacity`
is a power of two that covers the ids from the oldest live group to the newest.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.data.replay.columns import Columns, Int64Array
from ogrpo.protocol import BoolArray

SMALLEST = 64


class Rows(NamedTuple):
    """Columns of the ring, each `[capacity, ...]`."""

    alive: BoolArray
    uses: Int64Array
    problem: Int64Array
    oldest: Int64Array  # the oldest policy version among the completions
    spread: npt.NDArray[np.float64]  # mean over the group of |reward - group mean|
    lift: npt.NDArray[np.float64]  # largest reward - group mean
    bytes: Int64Array
    page: Int64Array
    start: Int64Array
    prompt_lengths: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]  # [capacity, G]
    policy_versions: npt.NDArray[np.int32]
    temperatures: npt.NDArray[np.float64]
    finish_reasons: npt.NDArray[np.uint8]
    rewards: npt.NDArray[np.float32]


class Features(NamedTuple):
    """What a priority may depend on, each `[n]`."""

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
        version: the newest policy version heard of.
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
        """Return where groups lie."""
        return ids & (self.capacity - 1)

    def ids(self, places: Int64Array) -> Int64Array:
        """Return which groups lie at `places`."""
        return self.head + ((places - self.head) & (self.capacity - 1))

    def append(self, ids: Int64Array, columns: Columns, token_bytes: Int64Array) -> None:
        """Enter groups under ascending `ids`, none below `next_id`; ids left out stay dead."""
        if self.live == 0:
            self.head = int(ids[0])
        self._cover(int(ids[-1]) + 1)
        places = self.places(ids)
        for name, values in _new_rows(columns, token_bytes + self.row_bytes).items():
            getattr(self.rows, name)[places] = values
        self.next_id, self.live = int(ids[-1]) + 1, self.live + len(ids)

    def remove(self, ids: Int64Array) -> None:
        """Forget live groups."""
        self.rows.alive[self.places(ids)] = False
        self.live -= len(ids)
        first = self.first(self.head, self.next_id, 1)
        self.head = int(first[0]) if len(first) else self.next_id

    def seek(self, next_id: int) -> None:
        """Let the next group have this id."""
        self.next_id = next_id
        self.head = self.head if self.live else next_id

    def first(self, start: int, stop: int, count: int) -> Int64Array:
        """Return up to `count` of the oldest live ids in `[start, stop)`, oldest first."""
        span = 2 * count
        while True:
            end = min(start + span, stop)
            ids = np.arange(start, end)
            ids = ids[self.rows.alive[self.places(ids)]]
            if len(ids) >= count or end == stop:
                return ids[:count]
            span *= 2

    def all_live(self) -> Int64Array:
        """Return the live ids, oldest first."""
        return self.first(self.head, self.next_id, max(self.live, 1))

    def features(self, places: Int64Array) -> Features:
        """Return what priorities of the groups at `places` depend on."""
        rows = self.rows
        return Features(
            staleness=self.version - rows.oldest[places],
            uses=rows.uses[places],
            spread=rows.spread[places],
            lift=rows.lift[places],
            problem=rows.problem[places],
        )

    def _cover(self, stop: int) -> None:
        if stop - self.head <= self.capacity:
            return
        ids = self.all_live()
        old, found = self.rows, self.places(ids)
        size = old.lengths.shape[1]
        self.rows = _empty_rows(size, 1 << (stop - self.head - 1).bit_length())
        for column, before in zip(self.rows, old, strict=True):
            column[self.places(ids)] = before[found]


def _empty_rows(group_size: int, capacity: int) -> Rows:
    def zeros(dtype: type, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((capacity, *shape), dtype)

    return Rows(
        alive=zeros(np.bool_),
        uses=zeros(np.int64),
        problem=zeros(np.int64),
        oldest=zeros(np.int64),
        spread=zeros(np.float64),
        lift=zeros(np.float64),
        bytes=zeros(np.int64),
        page=zeros(np.int64),
        start=zeros(np.int64),
        prompt_lengths=zeros(np.int32),
        lengths=zeros(np.int32, group_size),
        policy_versions=zeros(np.int32, group_size),
        temperatures=zeros(np.float64, group_size),
        finish_reasons=zeros(np.uint8, group_size),
        rewards=zeros(np.float32, group_size),
    )


def _new_rows(columns: Columns, n_bytes: Int64Array) -> dict[str, npt.NDArray[Any] | bool | int]:
    judged = ~np.isnan(columns.rewards)
    rewards = np.where(judged, columns.rewards, 0).astype(np.float64)
    count = np.maximum(judged.sum(axis=1, keepdims=True), 1)
    advantages = np.where(judged, rewards - rewards.sum(axis=1, keepdims=True) / count, 0)
    same = ("prompt_lengths", "lengths", "policy_versions", "temperatures", "finish_reasons")
    return {
        **{name: getattr(columns, name) for name in (*same, "rewards")},
        "alive": True,
        "uses": 0,
        "problem": columns.problems,
        "oldest": columns.policy_versions.min(axis=1),
        "spread": np.abs(advantages).sum(axis=1) / count[:, 0],
        "lift": advantages.max(axis=1),
        "bytes": n_bytes,
    }
