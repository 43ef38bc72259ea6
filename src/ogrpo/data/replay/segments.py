"""Segments on disk: Parquet files of whole groups, one row per completion, written once.

`groups-<first>-<stop>.parquet` holds the groups with ids `first <= id < stop`; it is whole or
absent (`ogrpo.system.files`). A file that holds other groups than its name says is as broken as a
torn one.
"""

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ogrpo.data.replay.columns import FINISH_REASONS, TOPS, Columns, Int64Array, Layout, join
from ogrpo.system import lock
from ogrpo.system.files import replacing, sync_folder

log = logging.getLogger(__name__)

NAME = re.compile(r"groups-(\d{12})-(\d{12})\.parquet")
ASIDE = "_dropped"
FORMAT = "ogrpo.replay.format"
VERSION = "3"
COLUMNS = (
    *("group", "completion", "problem", "prompt_ids", "token_ids", "log_probs", "reward"),
    *("policy_version", "temperature", "finish_reason", "version_spans", "without_loss"),
)
"""The columns of every file; those of what the sampler recorded come where there are any."""
SPAN = pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())])
STRETCH = pa.struct([("start", pa.int32()), ("end", pa.int32())])
# Repetitive columns; everything else would only fill a dictionary that is then thrown away.
DICTIONARIES = [
    *("completion", "problem", "prompt_ids.list.element", "token_ids.list.element", "reward"),
    *("policy_version", "temperature", "finish_reason"),
]


class BrokenSegment(ValueError):
    """A file that should hold certain groups and does not, or cannot be read."""


class MisplacedSegment(BrokenSegment):
    """A whole file that holds other groups than its name or the buffer's state says."""


@dataclass(frozen=True, order=True)
class Segment:
    """A file and the ids in it, `first <= id < stop`."""

    first: int
    stop: int
    file: Path

    def within(self, ids: Int64Array) -> Int64Array:
        """Returns those of the ascending `ids` that are in the segment."""
        first, stop = np.searchsorted(ids, [self.first, self.stop])
        return ids[first:stop]


class Journal:
    """Writes inserted groups to the segments of a folder; without a folder it does nothing.

    Attributes:
      folder: of the segments, or None.
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
        """Adds groups to those that wait for a segment."""
        if self.folder is not None:
            self._pending.append(columns)

    def flush(self) -> None:
        """Writes the groups that wait; on return all are acknowledged. On an error they wait on."""
        if self.folder is not None and self._pending:
            columns = join(self._pending)
            segment, digest = write(self.folder, self.acknowledged, columns, self._layout)
            self._pending.clear()
            self._digests[segment] = digest
            self.acknowledged = segment.stop

    def read(self, segment: Segment, digests: Mapping[str, str]) -> Columns:
        """Returns a segment's groups.

        Args:
          digests: of a state's files, by name. Without a state, a file is believed if it holds
            the groups of its name.

        Raises:
          MisplacedSegment: the file is another than the state's; and as `read`.
        """
        columns, digest = read(segment, self._layout)
        if (expected := digests.get(segment.file.name, digest)) != digest:
            raise MisplacedSegment(
                f"{segment.file} has SHA-256 {digest[:12]}..., and {expected[:12]}... when the "
                "state was saved: it was changed, or is another run's; put the right file back."
            )
        self._digests[segment] = digest
        return columns

    def digests(self, held: Int64Array) -> dict[str, str]:
        """Returns the SHA-256 of the files with a group in the ascending ids `held`, by name.

        Those of others are forgotten: what was evicted does not come back.
        """
        self._digests = {s: digest for s, digest in self._digests.items() if len(s.within(held))}
        return {segment.file.name: digest for segment, digest in self._digests.items()}

    def set_aside(self, segment: Segment, reason: str) -> int:
        """Moves a segment to the folder `_dropped`, logs it, and returns its number of groups."""
        folder = segment.file.parent / ASIDE
        folder.mkdir(exist_ok=True)
        number = sum(1 for _ in folder.iterdir())
        target = folder / f"{number:06d}-{segment.file.name}"
        os.replace(segment.file, target)
        for changed in (folder, segment.file.parent):
            sync_folder(changed)
        log.warning(
            "replay: groups %d to %d are dropped, %s; their file is now %s",
            *(segment.first, segment.stop - 1, reason, target),
        )
        return segment.stop - segment.first


def take_folder(folder: Path) -> None:
    """Takes a folder for this process until it ends, unless its run, the folder above, has it.

    Raises:
      FolderInUse: another process has it.
    """
    if lock.belongs_here(folder):
        return
    if lock.belongs_here(folder.parent):
        with lock.held(folder, "a replay buffer", log.warning):
            return  # nobody else has it
    above = [folder.parent] if (folder.parent / lock.NAME).exists() else []
    for home in (*above, folder):
        lock.take(home, "a replay buffer", log.warning)


def listed(folder: Path | None) -> list[Segment]:
    """Returns the segments of a folder in the order of their ids; none without a folder.

    Raises:
      ValueError: two segments share ids, as when two writers use one folder.
    """
    files = [] if folder is None else folder.glob("*.parquet")
    names = [(NAME.fullmatch(file.name), file) for file in files]
    segments = sorted(Segment(int(m[1]), int(m[2]), file) for m, file in names if m)
    for before, after in pairwise(segments):
        if after.first < before.stop:
            raise ValueError(
                f"{before.file} and {after.file} share ids; one folder belongs to one buffer."
            )
    return segments


def write(folder: Path, first: int, columns: Columns, layout: Layout) -> tuple[Segment, str]:
    """Writes groups `first, first + 1, ...`, and returns their segment and its SHA-256 once both
    the file and its name are on disk.

    Raises:
      ValueError: there is such a file already.
      OSError: it cannot be written; nothing of it stays.
    """
    stop = first + len(columns.problems)
    file = folder / f"groups-{first:012d}-{stop:012d}.parquet"
    if file.exists():
        raise ValueError(f"{file} is there already; one folder belongs to one buffer.")
    out = pa.BufferOutputStream()
    pq.write_table(
        to_table(first, columns, layout),
        out,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,  # pyright: ignore[reportArgumentType]
        write_page_checksum=True,
    )
    raw = out.getvalue().to_pybytes()
    try:
        with replacing(file, "wb") as stream:
            stream.write(raw)
    except BaseException as error:
        with suppress(OSError):  # what was not acknowledged is written again
            file.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(file)
        raise
    return Segment(first, stop, file), hashlib.sha256(raw).hexdigest()


def read(segment: Segment, layout: Layout) -> tuple[Columns, str]:
    """Returns the groups in a segment's file, and its SHA-256.

    Raises:
      BrokenSegment: it is no whole Parquet file, or a page fails its checksum.
      MisplacedSegment: it lacks a column, or holds other groups than its name says.
      ValueError: it was written with another layout, or in a format that is not known here.
    """
    try:
        raw = segment.file.read_bytes()
        file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise BrokenSegment(f"{segment.file} cannot be read: {error}") from error
    metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    if metadata.get(FORMAT) != VERSION:
        raise ValueError(
            f"{segment.file} has {FORMAT} = {metadata.get(FORMAT)}, and this version reads"
            f" {VERSION}: open it with the ogrpo that wrote it."
        )
    for name, expected in _metadata(layout).items():
        if metadata.get(name) != expected:
            raise ValueError(
                f"{segment.file} has {name} = {metadata.get(name)}, the buffer {expected}: "
                "open it with the layout it was written with."
            )
    _check_identity(segment, table, layout.group_size)
    return from_table(table, layout), hashlib.sha256(raw).hexdigest()


def _check_identity(segment: Segment, table: pa.Table, size: int) -> None:
    """Raises MisplacedSegment unless the table holds the segment's groups, whole and in order."""
    file = segment.file
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise MisplacedSegment(
            f"{file} lacks {', '.join(missing)}: put the file back that had this name."
        )
    for name in ("group", "completion"):
        if not pa.types.is_integer(table[name].type):
            raise MisplacedSegment(f"{file} has no column {name!r} of whole numbers.")
        if table[name].null_count:
            raise MisplacedSegment(f"{file} has rows without {name!r}.")
    ids = np.arange(segment.first, segment.stop)
    groups = table["group"].to_numpy()
    whole = np.array_equal(groups, np.repeat(ids, size))
    if not whole or not np.array_equal(table["completion"], np.tile(np.arange(size), len(ids))):
        content = f"groups {groups.min()} to {groups.max()}" if len(groups) else "no group"
        raise MisplacedSegment(
            f"{file} holds {content} in {len(groups)} rows, its name says groups {segment.first} to"
            f" {segment.stop - 1} of {size} completions each: put the file back that had this name."
        )


def to_table(first: int, columns: Columns, layout: Layout) -> pa.Table:
    """Returns one row per completion, in the order of the groups."""
    count, size = columns.lengths.shape
    groups = np.repeat(np.arange(count), size)
    reasons = pa.array(columns.finish_reasons.ravel().astype(np.int8))
    fields = {
        "group": pa.array(first + groups),
        "completion": pa.array(np.tile(np.arange(size, dtype=np.int32), count)),
        "problem": pa.array(columns.problems[groups]),
        "prompt_ids": _lists(columns.prompt_lengths, columns.prompt_ids).take(pa.array(groups)),
        "token_ids": _lists(columns.lengths, columns.token_ids),
        "log_probs": _lists(columns.lengths, columns.log_probs),
        "reward": pa.array(columns.rewards.ravel()),
        "policy_version": pa.array(columns.policy_versions.ravel()),
        "temperature": pa.array(columns.temperatures.ravel()),
        "finish_reason": pa.DictionaryArray.from_arrays(reasons, pa.array(FINISH_REASONS)),
        "version_spans": _row_lists(columns.spans, SPAN, count, size),
        "without_loss": _row_lists(columns.without_loss, STRETCH, count, size),
    }
    for name in TOPS:
        if width := getattr(columns, name).shape[1]:
            fields[name] = _lists(columns.lengths * width, getattr(columns, name).ravel())
    return pa.table(fields).replace_schema_metadata({FORMAT: VERSION, **_metadata(layout)})


def from_table(table: pa.Table, layout: Layout) -> Columns:
    """Inverts `to_table`."""
    one = table.combine_chunks()
    shape = (table.num_rows // layout.group_size, layout.group_size)
    prompts = one["prompt_ids"].take(pa.array(np.arange(0, table.num_rows, layout.group_size)))
    prompt_lengths, prompt_ids = _flat(prompts.combine_chunks())
    lengths, token_ids = _flat(one["token_ids"].combine_chunks())
    tops: dict[str, Any] = layout.no_tops(len(token_ids))
    for name, empty in tops.items():
        if empty.shape[1]:
            tops[name] = _flat(one[name].combine_chunks())[1].reshape(empty.shape)
    reasons = pc.index_in(one["finish_reason"], pa.array(FINISH_REASONS))  # pyright: ignore[reportAttributeAccessIssue]
    return Columns(
        prompt_ids=prompt_ids,
        prompt_lengths=prompt_lengths,
        token_ids=token_ids,
        log_probs=_flat(one["log_probs"].combine_chunks())[1],
        lengths=lengths.reshape(shape),
        policy_versions=one["policy_version"].to_numpy().reshape(shape),
        temperatures=one["temperature"].to_numpy().reshape(shape),
        finish_reasons=reasons.to_numpy().astype(np.uint8).reshape(shape),
        rewards=one["reward"].to_numpy().reshape(shape),
        problems=one["problem"].to_numpy()[:: layout.group_size],
        spans=_rows(one, "version_spans", layout.group_size),
        without_loss=_rows(one, "without_loss", layout.group_size),
        **tops,
    )


def _metadata(layout: Layout) -> dict[str, str]:
    return {
        "group_size": str(layout.group_size),
        "vocab_size": str(layout.vocab_size),
        "log_probs": "float32",
        "top": f"{layout.top}{' with log-probs' * layout.top_log_probs}",
    }


def _lists(lengths: npt.NDArray[np.int32], values: npt.NDArray[np.generic]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _flat(lists: pa.ListArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.generic]]:
    lengths = np.diff(lists.offsets.to_numpy())
    return lengths, lists.flatten().to_numpy(zero_copy_only=False)


def _row_lists(
    rows: npt.NDArray[np.int32], fields: pa.StructType, count: int, size: int
) -> pa.ListArray:
    """Returns a list for each completion of the columns after group's row and completion."""
    per_completion = np.bincount(rows[:, 0] * size + rows[:, 1], minlength=count * size)
    columns = [pa.array(column) for column in rows[:, 2:].T]
    values = pa.StructArray.from_arrays(columns, fields=list(fields))
    offsets = np.concatenate([[0], np.cumsum(per_completion)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _rows(table: pa.Table, name: str, size: int) -> npt.NDArray[np.int32]:
    """Inverts `_row_lists`."""
    lists = table[name].combine_chunks()
    row = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    parts = [part.to_numpy(zero_copy_only=False) for part in lists.flatten().flatten()]
    return np.stack([row // size, row % size, *parts], axis=1).astype(np.int32)
