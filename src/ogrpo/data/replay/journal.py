"""The folder of a buffer: what waits to be written, what is on disk, what is set aside."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ogrpo.data.replay import segments
from ogrpo.data.replay.columns import Columns, Int64Array, Layout, join
from ogrpo.data.replay.identity import MisplacedSegment
from ogrpo.data.replay.segments import Segment
from ogrpo.system import lock
from ogrpo.system.files import make_folder

log = logging.getLogger(__name__)


class Journal:
    """Writes what is inserted to segments of a folder; without a folder it does nothing.

    Attributes:
        folder: where segments go, or None.
        acknowledged: groups with an id below it are on disk.
    """

    def __init__(self, folder: Path | None, layout: Layout) -> None:
        self.folder, self._layout = folder, layout
        self._pending: list[Columns] = []
        self._digests: dict[Segment, str] = {}
        self.acknowledged = 0

    @property
    def waiting(self) -> int:
        """Groups that are not on disk yet."""
        return sum(len(columns.problems) for columns in self._pending)

    def append(self, columns: Columns) -> None:
        """Let groups wait for a segment."""
        if self.folder is not None:
            self._pending.append(columns)

    def flush(self) -> None:
        """Write the groups that wait; on return all are acknowledged. On an error they wait on."""
        if self.folder is None or not self._pending:
            return
        first, columns = self.acknowledged, join(self._pending)
        raw = segments.serialised(first, columns, self._layout)
        segment = segments.place(self.folder, first, columns, raw)
        self._pending.clear()
        self._digests[segment] = segments.digest(raw)
        self.acknowledged = segment.stop

    def listed(self) -> list[Segment]:
        """Return the segments on disk, in the order of their ids."""
        return [] if self.folder is None else segments.listed(self.folder)

    def read(self, segment: Segment, known: Mapping[str, str] | None = None) -> Columns:
        """Return a segment's groups.

        Args:
            segment: one of those listed.
            known: what a state says of its files (`digests`); a file that it does not name, as
                those of earlier versions did not, is believed if it holds the groups of its name.

        Raises:
            MisplacedSegment: the file is not the one of that name; see `segments.parsed`, too.
        """
        raw = segments.contents(segment)
        columns, found = segments.parsed(segment, raw, self._layout), segments.digest(raw)
        if (wanted := (known or {}).get(segment.file.name, found)) != found:
            raise MisplacedSegment(
                f"{segment.file} has SHA-256 {found[:12]}..., and {wanted[:12]}... when the state "
                "was saved: it was changed, or is another run's; put the right file back."
            )
        self._digests[segment] = found
        return columns

    def digests(self, held: Int64Array) -> dict[str, str]:
        """SHA-256 of the files with a group in the ascending ids `held`, by their names.

        Those of others are forgotten: what was evicted does not come back.
        """
        self._digests = {s: found for s, found in self._digests.items() if len(within(held, s))}
        return {segment.file.name: found for segment, found in self._digests.items()}

    def set_aside(self, segment: Segment, reason: str) -> int:
        """Move a segment to the folder `_dropped`, log it, and return its number of groups."""
        target = segments.set_aside(segment)
        log.warning(
            "replay: groups %d to %d are dropped, %s; their file is now %s",
            *(segment.first, segment.stop - 1, reason, target),
        )
        return segment.stop - segment.first

    def delete_all_but(self, held: Sequence[Int64Array]) -> int:
        """Delete the segments without a group in `held`; return their number."""
        live = np.unique(np.concatenate(held))
        dead = [segment for segment in self.listed() if not len(within(live, segment))]
        for segment in dead:
            segment.file.unlink()
        return len(dead)


def within(ids: Int64Array, segment: Segment) -> Int64Array:
    """Return those of the ascending `ids` that are a segment's."""
    first, stop = np.searchsorted(ids, [segment.first, segment.stop])
    return ids[first:stop]


def own(folder: Path) -> None:
    """Make a folder this process's until it ends, or the run's that it is a part of.

    Raises:
        Taken: another process has it.
    """
    home = folder.parent if (folder.parent / lock.NAME).exists() else folder
    if lock.belongs_here(home):
        return
    try:
        lock.take(home, "a replay buffer")
    except lock.NoLocks as error:
        log.warning("replay: %s has no locks (%s): let one process use it", folder, error.strerror)


def make_empty(folder: Path) -> None:
    """Make a folder for a new buffer.

    Raises:
        ValueError: it holds segments already, or another process has it.
    """
    make_folder(folder)
    own(folder)
    if found := segments.listed(folder):
        raise ValueError(
            f"{folder} holds {len(found)} segments already: use ReplayBuffer.open to go on with "
            "them, or another folder."
        )
