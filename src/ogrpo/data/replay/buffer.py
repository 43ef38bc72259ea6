"""The replay buffer: judged whole groups come in, draws of whole groups go out.

    experiences -> columns -> refusals -> memory -> eviction by the limits
                                       -> journal -> segment on disk (acknowledged)

`sample` copies what it draws, so a draw outlives the eviction of its groups. Everything that a
group can undergo is counted: refused, inserted, drawn, evicted (by reason), dropped (at opening).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ogrpo.data.replay import segments
from ogrpo.data.replay.columns import Columns, Experience, Int64Array, Layout, keep, pack
from ogrpo.data.replay.draw import Draw, Receipt
from ogrpo.data.replay.identity import BrokenSegment, MisplacedSegment
from ogrpo.data.replay.journal import Journal, make_empty, own, within
from ogrpo.data.replay.limits import BufferLimits
from ogrpo.data.replay.memory import Memory
from ogrpo.data.replay.samplers import Sampler
from ogrpo.data.replay.segments import Segment
from ogrpo.data.replay.table import Table
from ogrpo.protocol import BoolArray
from ogrpo.system.files import make_folder

State = dict[str, Any]


class ReplayBuffer:
    """Judged whole groups in memory, and on disk if there is a folder.

    Args:
        layout: what all groups have in common.
        limits: when groups are evicted from memory. Files are kept; see `prune`.
        sampler: makes the sampler of this buffer: `Fifo`, `partial(uniform, replace=False)`.
        folder: where segments go; None keeps the buffer in memory only, where nothing is ever
            acknowledged and a state can be saved only while the buffer is empty.
        segment_groups: a segment is written as soon as so many groups wait for it; `flush` and
            `state` write at once. What waits is lost in a crash.
        refuse_zero_variance: refuse groups whose rewards are all equal.

    Raises:
        ValueError: the folder holds segments (use `open`), or the limit on uses is combined with
            drawing with replacement, which could exceed it within a draw.
    """

    def __init__(
        self,
        layout: Layout,
        limits: BufferLimits,
        sampler: Callable[[Table], Sampler],
        *,
        folder: Path | None = None,
        segment_groups: int = 256,
        refuse_zero_variance: bool = False,
    ) -> None:
        if segment_groups < 1:
            raise ValueError(f"segment_groups is {segment_groups}; give at least 1.")
        self.layout, self.limits = layout, limits
        self._segment_groups = segment_groups
        self._refuse_zero_variance = refuse_zero_variance
        self._counts: Counter[str] = Counter()
        self._make_sampler = sampler
        self._journal = Journal(folder, layout)
        self._hold(Memory(layout))
        if folder is not None:
            make_empty(folder)

    @classmethod
    def open(
        cls,
        folder: Path | None,
        layout: Layout,
        limits: BufferLimits,
        sampler: Callable[[Table], Sampler],
        *,
        state: State | None,
        **options: Any,
    ) -> "ReplayBuffer":
        """Return the buffer that `state` describes, or without one, all that the folder holds.

        With a state, further insertions and draws are those of the buffer that saved it; segments
        written since are moved to the folder `_dropped`, logged and counted. Without a state every
        group on disk is inserted again, unused, under the limits. A newest segment that cannot be
        read and that the state does not speak of was never acknowledged: it is moved, too.

        Raises:
            BrokenSegment: a segment that is needed cannot be read; as a `MisplacedSegment`, it
                holds other groups than its name says, or is not the file that the state speaks of.
            ValueError: a segment that is needed is missing, or has another layout, or another
                process has the folder.
        """
        buffer = cls(layout, limits, sampler, folder=None, **options)
        buffer._journal = Journal(folder, layout)
        if folder is not None:
            make_folder(folder)
            own(folder)
        if state is None:
            buffer._load_all()
        else:
            buffer._restore(state)
        if folder is not None and (unfinished := segments.clean(folder)):
            buffer._count("dropped/unfinished_files", unfinished)
        return buffer

    def __len__(self) -> int:
        """Groups held."""
        return self._table.live

    @property
    def nbytes(self) -> int:
        """Bytes that the groups held take up: tokens, log-probs and their rows."""
        return self._memory.nbytes

    @property
    def acknowledged(self) -> int:
        """Groups with an id below it are on disk."""
        return self._journal.acknowledged

    @property
    def changes(self) -> int:
        """How many groups were given or drawn so far: while it stands still, the buffer does.

        What expires is not counted: it expires again.
        """
        refused = (n for name, n in self._counts.items() if name.startswith("refused/"))
        return self._counts["inserted"] + self._counts["drawn"] + sum(refused)

    @property
    def version(self) -> int:
        """The newest policy version heard of, from `expire` or from a group."""
        return self._table.version

    def insert(self, experiences: Sequence[Experience]) -> Receipt:
        """Insert groups, all or, if one of them is malformed, none.

        Refused, by reason: `stale` (beyond the limit on staleness), `zero_variance` (if asked for).

        Raises:
            ValueError: see `pack`.
        """
        return self.insert_columns(pack(experiences, self.layout))

    def insert_columns(self, columns: Columns) -> Receipt:
        """Insert groups that `pack` or `pack_batch` made with this buffer's layout."""
        if len(columns.problems) == 0:
            return Receipt(np.zeros(0, np.int64), {})
        self._raise_version(int(columns.policy_versions.max()))
        kept, refused = self._admit(columns)
        ids = np.where(kept, self._table.next_id + np.cumsum(kept) - 1, -1)
        if kept.any():
            admitted = keep(columns, kept)
            self._count("inserted", int(kept.sum()))
            self._journal.append(admitted)
            self._enter(ids[kept], admitted)
            self._make_room()
        if self._journal.waiting >= self._segment_groups:
            self.flush()
        return Receipt(ids, refused)

    def flush(self) -> None:
        """Write the groups that wait for a segment; on return all are acknowledged."""
        self._journal.flush()

    def expire(self, version: int) -> None:
        """Hear that the policy is at `version`, and evict what is too stale at it.

        Raises:
            ValueError: `version` is older than one heard of.
        """
        if version < self.version:
            raise ValueError(
                f"version is {version}, {self.version} was heard of before; versions go up."
            )
        self._raise_version(version)

    def sample(self, count: int, *, seed: int) -> Draw:
        """Draw `count` whole groups; the same buffer and seed give the same draw.

        Groups that reach the limit on uses by it are evicted afterwards.

        Raises:
            TooFewGroups: the sampler cannot serve that many.
        """
        if count < 1:
            raise ValueError(f"count is {count}; draw at least 1 group.")
        ids = self._sampler.draw(count, np.random.default_rng(seed))
        draw = self._memory.read(ids)
        self._table.cursor = int(ids[-1]) + 1
        self._count("drawn", count)
        self._use(ids)
        return draw

    def statistics(self) -> dict[str, float]:
        """Return what the buffer holds and has counted."""
        table = self._table
        features = table.features(table.places(table.all_live()))
        held = {
            "groups": len(self),
            "bytes": self.nbytes,
            "bytes/allocated": self._memory.allocated,
            "unacknowledged": self._journal.waiting,
        }
        spread = {**_spread("uses", features.uses), **_spread("staleness", features.staleness)}
        return {name: float(n) for name, n in {**held, **spread, **self._counts}.items()}

    def state(self) -> State:
        """Flush, and return what a checkpoint needs beside the segments: plain JSON.

        Raises:
            ValueError: the buffer holds groups and has no folder to find them in again.
        """
        if self._journal.folder is None and len(self):
            raise ValueError(
                f"{len(self)} groups are held in memory only and would not survive: give the "
                "buffer a folder, or save its state while it is empty."
            )
        self.flush()
        table = self._table
        ids = table.all_live()
        return {
            "ids": ids.tolist(),
            "uses": table.rows.uses[table.places(ids)].tolist(),
            "next_id": table.next_id,
            "cursor": table.cursor,
            "version": table.version,
            "capacity": table.capacity,
            "counts": dict(self._counts),
            "segments": self._journal.digests(ids),
        }

    def prune(self, states: Iterable[State] = ()) -> int:
        """Delete the files without a group held, here or in one of `states`; return their number.

        Pass every state that may still be opened: one that speaks of a deleted file cannot be.
        """
        saved = (np.array(state["ids"], np.int64) for state in states)
        return self._journal.delete_all_but([self._table.all_live(), *saved])

    @property
    def _table(self) -> Table:
        return self._memory.table

    def _hold(self, memory: Memory) -> None:
        self._memory = memory
        self._sampler = self._make_sampler(memory.table)
        if self._sampler.replace and self.limits.uses is not None:
            raise ValueError(
                f"a limit of {self.limits.uses} uses and a sampler that draws with replacement: "
                "a draw could exceed it; draw without replacement or leave the limit out."
            )

    def _admit(self, columns: Columns) -> tuple[BoolArray, dict[str, int]]:
        kept, refused = np.ones(len(columns.problems), np.bool_), {}
        for reason, wrong in self._refusals(columns):
            if (found := int((wrong & kept).sum())) > 0:
                refused[reason] = found
                self._count(f"refused/{reason}", found)
            kept &= ~wrong
        return kept, refused

    def _refusals(self, columns: Columns) -> Iterator[tuple[str, BoolArray]]:
        if self.limits.staleness is not None:
            staleness = self.version - columns.policy_versions.min(axis=1)
            yield "stale", staleness > self.limits.staleness
        if self._refuse_zero_variance:
            judged = ~np.isnan(columns.rewards)
            most = columns.rewards.max(axis=1, where=judged, initial=-np.inf)
            yield "zero_variance", most <= columns.rewards.min(axis=1, where=judged, initial=np.inf)

    def _enter(self, ids: Int64Array, columns: Columns) -> None:
        self._memory.put(ids, columns)
        self._sampler.update(ids)

    def _evict(self, ids: Int64Array, reason: str) -> None:
        if len(ids) == 0:
            return
        self._memory.drop(ids)
        self._sampler.update(ids)
        self._count(f"evicted/{reason}", len(ids))

    def _make_room(self) -> None:
        if self.limits.groups is not None and (excess := len(self) - self.limits.groups) > 0:
            self._evict(self._table.first(self._table.head, self._table.next_id, excess), "groups")
        if self.limits.bytes is not None and (excess := self.nbytes - self.limits.bytes) > 0:
            self._evict(self._memory.oldest(excess), "bytes")

    def _raise_version(self, version: int) -> None:
        if version <= self.version:
            return
        self._table.version = version
        if self.limits.staleness is not None:
            ids = self._table.all_live()
            staleness = self._table.features(self._table.places(ids)).staleness
            self._evict(ids[staleness > self.limits.staleness], "staleness")

    def _use(self, ids: Int64Array) -> None:
        uses = self._table.rows.uses
        np.add.at(uses, self._table.places(ids), 1)
        ids = np.unique(ids)
        self._sampler.update(ids)
        if self.limits.uses is not None:
            self._evict(ids[uses[self._table.places(ids)] >= self.limits.uses], "uses")

    def _restore(self, state: State) -> None:
        self._hold(Memory(self.layout, state["capacity"]))
        self._counts = Counter(state["counts"])
        known = state.get("segments", {})
        table, ids = self._table, np.array(state["ids"], np.int64)
        table.version = state["version"]
        for segment in self._journal.listed():
            if segment.first >= state["next_id"]:
                self._set_aside(segment, "superseded")
            elif len(wanted := within(ids, segment)):
                columns = self._journal.read(segment, known)
                there = np.isin(np.arange(segment.first, segment.stop), wanted)
                self._enter(wanted, keep(columns, there))
        self._check_found(ids)
        table.rows.uses[table.places(ids)] = state["uses"]
        self._sampler.update(ids)
        self._resume_at(state["next_id"], state["cursor"])

    def _load_all(self) -> None:
        listed = self._journal.listed()
        for segment in listed:
            try:
                columns = self._journal.read(segment)
            except BrokenSegment as error:
                if segment != listed[-1] or isinstance(error, MisplacedSegment):
                    raise
                self._set_aside(segment, "torn")
            else:
                self._reinsert(segment, columns)
                self._resume_at(segment.stop, 0)

    def _reinsert(self, segment: Segment, columns: Columns) -> None:
        self._raise_version(int(columns.policy_versions.max()))
        kept, _ = self._admit(columns)
        self._count("inserted", int(kept.sum()))
        if kept.any():
            self._enter(np.arange(segment.first, segment.stop)[kept], keep(columns, kept))
            self._make_room()

    def _resume_at(self, next_id: int, cursor: int) -> None:
        self._table.seek(next_id)
        self._table.cursor = cursor
        self._journal.acknowledged = next_id

    def _set_aside(self, segment: Segment, reason: str) -> None:
        self._count(f"dropped/{reason}", self._journal.set_aside(segment, reason))

    def _check_found(self, ids: Int64Array) -> None:
        table = self._table
        missing = ids[~table.rows.alive[table.places(ids)]] if len(self) else ids
        if len(missing):
            raise ValueError(
                f"{len(missing)} groups of the state, the first {missing[0]}, are in no segment of "
                f"{self._journal.folder}: open the folder that the state was saved with, or a"
                " newer state if the files were pruned."
            )

    def _count(self, name: str, count: int) -> None:
        self._counts[name] += count


def _spread(name: str, values: Int64Array) -> dict[str, float]:
    return {
        f"{name}/mean": float(values.mean()) if len(values) else 0.0,
        f"{name}/max": float(values.max(initial=0)),
    }
