"""The replay buffer: judged whole groups come in, draws of whole groups go out.

    experiences -> columns -> refusals -> memory -> eviction by the limits
                                       -> journal -> segment on disk (acknowledged)

`sample` copies what it draws, so a draw outlives the eviction of its groups. Everything that a
group can undergo is counted: refused, inserted, drawn, evicted (by reason), dropped (at opening).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ogrpo.data.replay import segments
from ogrpo.data.replay.columns import ANOTHER, Columns, Experience, Int64Array, Layout, keep, pack
from ogrpo.data.replay.samplers import Sampler
from ogrpo.data.replay.segments import BrokenSegment, Journal, MisplacedSegment, Segment
from ogrpo.data.replay.table import Draw, Table
from ogrpo.protocol import BoolArray
from ogrpo.system.files import drop_drafts, make_folder

BufferState = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BufferLimits:
    """Limits beyond which groups are evicted; None for no limit.

    Attributes:
      groups: groups held; the oldest go first.
      staleness: policy versions between the buffer's newest and the oldest in the group.
      uses: draws of a group, the last one included.
    """

    groups: int | None = None
    staleness: int | None = None
    uses: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("groups", 1), ("staleness", 0), ("uses", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"limit on {name} is {value}; give at least {least}, or None.")


class ReplayBuffer:
    """Judged whole groups in memory, and on disk if there is a folder.

    With a state, further insertions and draws are those of the buffer that saved it; segments
    written since are moved to the folder `_dropped`, logged and counted. Without a state every
    group on disk is inserted again, unused, under the limits. A newest segment that cannot be
    read and that the state does not speak of was never acknowledged: it is moved, too.

    Args:
      layout: the sizes and types that all groups share.
      limits: when groups are evicted from memory. Files are kept; see `prune`.
      sampler: draws ids from the table: `fifo`, `uniform`.
      folder: where segments are, and go; None keeps the buffer in memory only, where nothing is
        ever acknowledged and a state can be saved only while the buffer is empty.
      state: as from `state`.
      segment_groups: a segment is written as soon as so many groups wait for it; `flush` and
        `state` write at once. What waits is lost in a crash.
      refuse_zero_variance: refuse groups whose rewards are all equal.
      refuse_failures: refuse groups without a reward above 0.

    Raises:
      BrokenSegment: a segment that is needed cannot be read; as a `MisplacedSegment`, it
        holds other groups than its name says, or is not the file that the state speaks of.
      ValueError: a segment that is needed is missing, or has another layout, or another
        process has the folder.
    """

    def __init__(
        self,
        layout: Layout,
        limits: BufferLimits,
        sampler: Sampler,
        *,
        folder: Path | None = None,
        state: BufferState | None = None,
        segment_groups: int = 256,
        refuse_zero_variance: bool = False,
        refuse_failures: bool = False,
    ) -> None:
        if segment_groups < 1:
            raise ValueError(f"segment_groups is {segment_groups}; give at least 1.")
        self.layout, self.limits = layout, limits
        self._segment_groups = segment_groups
        self._refuse_zero_variance = refuse_zero_variance
        self._refuse_failures = refuse_failures
        self._counts: Counter[str] = Counter()
        self._sampler, self._table = sampler, Table()
        self._journal = Journal(folder, layout)
        if folder is not None:
            make_folder(folder)
            segments.take_folder(folder)
        if state is None:
            self._load_all()
        else:
            self._restore(state)
        if folder is not None and (drafts := drop_drafts(folder)):
            self._counts["dropped/unfinished_files"] += drafts

    def __len__(self) -> int:
        """Groups held."""
        return len(self._table.groups)

    @property
    def acknowledged(self) -> int:
        """Groups with an id below it are on disk."""
        return self._journal.acknowledged

    @property
    def changes(self) -> int:
        """Number of groups inserted, refused or drawn: while it stays, the buffer does.

        What expires is not counted: it expires again.
        """
        refused = (n for name, n in self._counts.items() if name.startswith("refused/"))
        return self._counts["inserted"] + self._counts["drawn"] + sum(refused)

    @property
    def version(self) -> int:
        """The newest policy version, of `expire` or of a group."""
        return self._table.version

    def insert(self, experiences: Sequence[Experience]) -> Int64Array:
        """Inserts groups, all or, if one of them is malformed, none.

        Refused, by reason: `stale` (beyond the limit on staleness), `failures` and `zero_variance`
        (if those are options of the buffer).

        Returns:
          Their ids, int64 `[N]`, -1 where a group was refused. A group is acknowledged, that is,
          on disk, once `acknowledged` exceeds its id.

        Raises:
          ValueError: as `pack`.
        """
        return self.insert_columns(pack(experiences, self.layout))

    def insert_columns(self, columns: Columns) -> Int64Array:
        """Inserts groups that `pack` made with this buffer's layout."""
        if len(columns.problems) == 0:
            return np.zeros(0, np.int64)
        admitted = self._admit(columns)
        ids = np.where(admitted, self._table.next_id + np.cumsum(admitted) - 1, -1)
        if admitted.any():
            columns = keep(columns, admitted)
            self._journal.append(columns)
            self._hold(ids[admitted], columns)
        if self._journal.waiting >= self._segment_groups:
            self.flush()
        return ids

    def flush(self) -> None:
        """Writes the groups that wait for a segment; on return all are acknowledged."""
        self._journal.flush()

    def expire(self, version: int) -> None:
        """Sets the policy's version, and evicts what is too stale at it.

        Raises:
          ValueError: `version` is older than the buffer's.
        """
        if version < self.version:
            raise ValueError(f"version is {version}, {self.version} was before; versions go up.")
        self._raise_version(version)

    def sample(self, count: int, *, seed: int) -> Draw:
        """Draws `count` whole groups; the same buffer and seed give the same draw.

        Groups that reach the limit on uses by it are evicted afterwards.

        Raises:
          TooFewGroups: the sampler cannot serve that many.
        """
        if count < 1:
            raise ValueError(f"count is {count}; draw at least 1 group.")
        ids = self._sampler(self._table, count, np.random.default_rng(seed))
        draw = self._table.read(ids)
        self._table.cursor = int(ids[-1]) + 1
        self._counts["drawn"] += count
        for id_ in ids.tolist():
            self._table.groups[id_].uses += 1
        if self.limits.uses is not None:
            self._evict(ids[draw.uses + 1 >= self.limits.uses], "uses")
        return draw

    def statistics(self) -> dict[str, float]:
        """Returns sizes and counts of the buffer, by name."""
        features = self._table.features(self._table.ids)
        figures: dict[str, float] = {
            "groups": len(self),
            "bytes": self._table.nbytes,
            "unacknowledged": self._journal.waiting,
        }
        for name, values in (("uses", features.uses), ("staleness", features.staleness)):
            figures[f"{name}/mean"] = values.mean() if len(values) else 0.0
            figures[f"{name}/max"] = values.max(initial=0)
        return {name: float(n) for name, n in {**figures, **self._counts}.items()}

    def state(self) -> BufferState:
        """Flushes, and returns what a checkpoint needs beside the segments: plain JSON.

        Raises:
          ValueError: the buffer holds groups and has no folder to read them from again.
        """
        if self._journal.folder is None and len(self):
            raise ValueError(
                f"{len(self)} groups are held in memory only and would not survive: give the "
                "buffer a folder, or save its state while it is empty."
            )
        self.flush()
        table = self._table
        return {
            "ids": [*table.groups],
            "uses": [held.uses for held in table.groups.values()],
            "next_id": table.next_id,
            "cursor": table.cursor,
            "version": table.version,
            "capacity": table.capacity,
            "counts": dict(self._counts),
            "segments": self._journal.digests(table.ids),
        }

    def prune(self, states: Iterable[BufferState] = ()) -> int:
        """Deletes the files without a group held, here or in one of `states`; returns how many.

        Pass every state that may still be opened: one that speaks of a deleted file cannot be.
        """
        saved = (np.array(state["ids"], np.int64) for state in states)
        live = np.unique(np.concatenate([self._table.ids, *saved]))
        listed = segments.listed(self._journal.folder)
        dead = [segment for segment in listed if not len(segment.within(live))]
        for segment in dead:
            segment.file.unlink()
        return len(dead)

    def _admit(self, columns: Columns) -> BoolArray:
        """Returns which groups are taken in, bool `[N]`, and counts the others by reason.

        Their newest version is the buffer's from now on.
        """
        self._raise_version(int(columns.policy_versions.max()))
        wrong: dict[str, BoolArray] = {}
        if self.limits.staleness is not None:
            staleness = self.version - columns.policy_versions.min(axis=1)
            wrong["stale"] = staleness > self.limits.staleness
        judged = ~np.isnan(columns.rewards)
        most = columns.rewards.max(axis=1, where=judged, initial=-np.inf)
        if self._refuse_failures:
            wrong["failures"] = most <= 0
        if self._refuse_zero_variance:
            least = columns.rewards.min(axis=1, where=judged, initial=np.inf)
            wrong["zero_variance"] = most <= least
        admitted = np.ones(len(columns.problems), np.bool_)
        for reason, groups in wrong.items():
            if (count := int((groups & admitted).sum())) > 0:
                self._counts[f"refused/{reason}"] += count
            admitted &= ~groups
        return admitted

    def _hold(self, ids: Int64Array, columns: Columns) -> None:
        """Takes in groups that were admitted, counts them, and evicts the oldest if need be."""
        self._counts["inserted"] += len(ids)
        if logged := int((columns.policy_versions.max(axis=1) == ANOTHER).sum()):
            self._counts["logged"] += logged
        self._table.append(ids, columns)
        if self.limits.groups is not None and (excess := len(self) - self.limits.groups) > 0:
            self._evict(self._table.ids[:excess], "groups")

    def _evict(self, ids: Int64Array, reason: str) -> None:
        if len(ids):
            self._table.remove(ids)
            self._counts[f"evicted/{reason}"] += len(ids)

    def _raise_version(self, version: int) -> None:
        if version <= self.version:
            return
        self._table.version = version
        if self.limits.staleness is not None:
            ids = self._table.ids
            staleness = self._table.features(ids).staleness
            self._evict(ids[staleness > self.limits.staleness], "staleness")

    def _restore(self, state: BufferState) -> None:
        """Reads the groups of a state back, and sets later segments aside."""
        table = self._table = Table(state["capacity"])
        self._counts, ids = Counter(state["counts"]), np.array(state["ids"], np.int64)
        table.version = state["version"]
        listed = segments.listed(self._journal.folder)
        for segment in listed:
            if len(needed := segment.within(ids)):
                columns = self._journal.read(segment, state["segments"])
                there = np.isin(np.arange(segment.first, segment.stop), needed)
                table.append(needed, keep(columns, there))
        if len(missing := np.setdiff1d(ids, table.ids)):
            raise ValueError(
                f"{len(missing)} groups of the state, the first {missing[0]}, are in no segment of "
                f"{self._journal.folder}: open the folder that the state was saved with, or a"
                " newer state if the files were pruned."
            )
        for segment in listed:  # once nothing can be refused any more
            if segment.first >= state["next_id"]:
                self._set_aside(segment, "superseded")
        for id_, uses in zip(state["ids"], state["uses"], strict=True):
            table.groups[id_].uses = uses
        self._resume_at(state["next_id"], state["cursor"])

    def _load_all(self) -> None:
        """Inserts the groups of all segments again; a torn newest one is set aside."""
        listed = segments.listed(self._journal.folder)
        for segment in listed:
            try:
                columns = self._journal.read(segment, {})
            except BrokenSegment as error:
                if segment != listed[-1] or isinstance(error, MisplacedSegment):
                    raise
                self._set_aside(segment, "torn")
                continue
            admitted = self._admit(columns)
            if admitted.any():
                ids = np.arange(segment.first, segment.stop)[admitted]
                self._hold(ids, keep(columns, admitted))
            self._resume_at(segment.stop, 0)

    def _resume_at(self, next_id: int, cursor: int) -> None:
        self._table.next_id, self._table.cursor = next_id, cursor
        self._journal.acknowledged = next_id

    def _set_aside(self, segment: Segment, reason: str) -> None:
        self._counts[f"dropped/{reason}"] += self._journal.set_aside(segment, reason)
