"""The buffer's groups: a row for each in a ring, its tokens, and the rows that few groups have.

Groups are numbered in the order of insertion. Group `id` lies at place `id % capacity`; `capacity`
is a power of two that covers the ids from the oldest live group to the newest.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.data.replay.columns import PER_GROUP, RARE, TOPS, Columns, Int64Array, Layout, pad
from ogrpo.protocol import BoolArray, FloatArray, IntArray

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
    def rewards(self) -> FloatArray:
        """float32 `[N, G]`."""
        return self.columns.rewards

    @property
    def problems(self) -> Int64Array:
        """int64 `[N]`."""
        return self.columns.problems

    def batch(
        self, prompt_length: int, completion_length: int, *, pad_id: int = 0
    ) -> Batch[np.ndarray]:
        """Pads the groups, as `pad_groups` does."""
        return pad(self.columns, prompt_length, completion_length, pad_id=pad_id)


class Table:
    """The groups of one buffer by id, and the counters that draws depend on.

    Attributes:
        rows: the ring.
        head: id of the oldest live group; `next_id` if there is none.
        next_id: id of the next group inserted.
        cursor: one more than the id drawn last.
        version: the newest policy version, of `ReplayBuffer.expire` or of a group.
        live: number of live groups.
        nbytes: bytes that they take up: tokens, log-probs, rare rows and their rows in the ring.
    """

    def __init__(self, layout: Layout, capacity: int = SMALLEST) -> None:
        self.rows = _empty_rows(layout.group_size, capacity)
        self.head = self.next_id = self.cursor = self.version = self.live = self.nbytes = 0
        self._rare: dict[str, dict[int, IntArray]] = {name: {} for name in RARE}
        self._no_tops = layout.no_tops(0)
        self._tops: dict[str, dict[int, npt.NDArray[Any]]] = {name: {} for name in TOPS}

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

    def append(self, ids: Int64Array, columns: Columns) -> None:
        """Stores copies of groups under ascending `ids`, none below `next_id`.

        Ids left out stay dead.
        """
        if self.live == 0:
            self.head = int(ids[0])
        self._cover(int(ids[-1]) + 1)
        token_bytes = columns.token_ids.itemsize + columns.log_probs.itemsize
        n_bytes = (columns.totals + columns.prompt_lengths) * token_bytes + self.row_bytes
        for name, rare in self._rare.items():
            stored = getattr(columns, name)
            for n in np.unique(stored[:, 0]).tolist():
                rare[int(ids[n])] = part = stored[stored[:, 0] == n, 1:]
                n_bytes[n] += part.nbytes
        ends = np.cumsum(columns.totals)[:-1]
        for name, tops in self._tops.items() if columns.top_ids.shape[1] else ():
            stored = getattr(columns, name)
            n_bytes += columns.totals * stored[:1].nbytes
            parts = zip(ids.tolist(), np.split(stored, ends), strict=True)
            tops |= {id_: part.copy() for id_, part in parts}
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
            "bytes": n_bytes,
        }
        places, rows = self.places(ids), self.rows
        for name, value in values.items():
            getattr(rows, name)[places] = value
        prompts = np.split(columns.prompt_ids, np.cumsum(columns.prompt_lengths)[:-1])
        tokens, log_probs = np.split(columns.token_ids, ends), np.split(columns.log_probs, ends)
        for n, place in enumerate(places.tolist()):
            rows.tokens[place] = np.concatenate([prompts[n], tokens[n]])
            rows.log_probs[place] = log_probs[n].copy()
        self.next_id, self.live = int(ids[-1]) + 1, self.live + len(ids)
        self.nbytes += int(n_bytes.sum())

    def remove(self, ids: Int64Array) -> None:
        """Removes live groups."""
        places = self.places(ids)
        self.nbytes -= int(self.rows.bytes[places].sum())
        self.rows.alive[places] = False
        self.rows.tokens[places] = self.rows.log_probs[places] = None
        self.live -= len(ids)
        first = self.first(self.head, self.next_id, 1)
        self.head = int(first[0]) if len(first) else self.next_id
        for rare in (*self._rare.values(), *self._tops.values()):
            for id_ in ids.tolist() if rare else ():
                rare.pop(id_, None)

    def read(self, ids: Int64Array) -> Draw:
        """Returns copies of live groups, in the order of `ids`."""
        places, rows = self.places(ids), self.rows
        tokens, middles = rows.tokens[places].tolist(), rows.prompt_lengths[places].tolist()
        pairs = list(zip(tokens, middles, strict=True))
        columns = {name: getattr(rows, name)[places] for name in PER_GROUP}
        for name, rare in self._rare.items():
            held = [(n, rare[id_]) for n, id_ in enumerate(ids.tolist()) if id_ in rare]
            parts = [np.insert(part, 0, n, axis=1) for n, part in held]
            columns[name] = np.concatenate([np.zeros((0, RARE[name]), np.int32), *parts])
        log_probs = np.concatenate(rows.log_probs[places].tolist())
        for name, tops in self._tops.items():
            parts = [tops[id_] for id_ in ids.tolist()] if tops else []
            empty = self._no_tops[name]
            columns[name] = (
                np.concatenate([empty, *parts])
                if tops
                else np.zeros((len(log_probs), empty.shape[1]), empty.dtype)
            )
        return Draw(
            ids=ids,
            columns=Columns(
                **columns,
                prompt_ids=np.concatenate([array[:middle] for array, middle in pairs]),
                token_ids=np.concatenate([array[middle:] for array, middle in pairs]),
                log_probs=log_probs,
            ),
            uses=rows.uses[places],
            staleness=self.features(places).staleness,
        )

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
