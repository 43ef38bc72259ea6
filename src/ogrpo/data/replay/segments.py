"""Segments on disk: Parquet files of whole groups, one row per completion, written once.

`groups-<first>-<stop>.parquet` holds the groups with ids `first <= id < stop`. A segment is written
beside its place, flushed to the disk and renamed into it, so such a name stands for a whole file;
what a crash leaves behind is named `_unfinished-...`. A file that holds other groups than its name
says is as broken as a torn one.
"""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ogrpo.data.replay.columns import FINISH_REASONS, Columns, Layout
from ogrpo.data.replay.identity import BrokenSegment, check_identity
from ogrpo.data.replay.stretches import no_stretches
from ogrpo.system.files import sync_folder

NAME = re.compile(r"groups-(\d{12})-(\d{12})\.parquet")
UNFINISHED = "_unfinished-"  # readers of a whole folder pass over names that begin with _
ASIDE = "_dropped"
FORMAT = "ogrpo.replay.format"
WRITTEN, READ = "2", ("1", "2")  # 1 has no column `without_loss`: all tokens carry loss
SPAN = pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())])
STRETCH = pa.struct([("start", pa.int32()), ("end", pa.int32())])
# Repetitive columns; everything else would only fill a dictionary that is then thrown away.
DICTIONARIES = [
    *("completion", "problem", "prompt_ids.list.element", "token_ids.list.element", "reward"),
    *("policy_version", "temperature", "finish_reason"),
]


@dataclass(frozen=True, order=True)
class Segment:
    """A file and the ids in it, `first <= id < stop`."""

    first: int
    stop: int
    file: Path


def listed(folder: Path) -> list[Segment]:
    """Return the segments of a folder in the order of their ids.

    Raises:
        ValueError: two segments share ids, as when two writers use one folder.
    """
    names = [(NAME.fullmatch(file.name), file) for file in folder.glob("*.parquet")]
    found = sorted(Segment(int(m[1]), int(m[2]), file) for m, file in names if m)
    for before, after in pairwise(found):
        if after.first < before.stop:
            raise ValueError(
                f"{before.file} and {after.file} share ids; one folder belongs to one buffer."
            )
    return found


def write(folder: Path, first: int, columns: Columns, layout: Layout) -> Segment:
    """Write groups `first, first + 1, ...` and return once they are on disk."""
    return place(folder, first, columns, serialised(first, columns, layout))


def serialised(first: int, columns: Columns, layout: Layout) -> bytes:
    """Return the file of groups `first, first + 1, ...`."""
    out = pa.BufferOutputStream()
    _write_table(to_table(first, columns, layout), out)
    return out.getvalue().to_pybytes()


def place(folder: Path, first: int, columns: Columns, raw: bytes) -> Segment:
    """Write the file of groups under its name, and return once both are on disk."""
    stop = first + len(columns.problems)
    file = folder / f"groups-{first:012d}-{stop:012d}.parquet"
    if file.exists():
        raise ValueError(f"{file} is there already; one folder belongs to one buffer.")
    unfinished = file.with_name(UNFINISHED + file.name)
    try:
        with unfinished.open("wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, file)
        sync_folder(folder)
    except BaseException as error:
        for each in (unfinished, file):  # what was not acknowledged is written again
            with suppress(OSError):
                each.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error  # a full disk names none
    return Segment(first, stop, file)


def read(segment: Segment, layout: Layout) -> Columns:
    """Read a segment back; see `contents` and `parsed` for errors."""
    return parsed(segment, contents(segment), layout)


def contents(segment: Segment) -> bytes:
    """The file of a segment.

    Raises:
        BrokenSegment: it cannot be read.
    """
    try:
        return segment.file.read_bytes()
    except OSError as error:
        raise BrokenSegment(f"{segment.file} cannot be read: {error}") from error


def digest(raw: bytes) -> str:
    """SHA-256 of a file, by which a buffer's state knows it again."""
    return hashlib.sha256(raw).hexdigest()


def parsed(segment: Segment, raw: bytes, layout: Layout) -> Columns:
    """The groups in a segment's file.

    Raises:
        BrokenSegment: it is no whole Parquet file, or a page fails its checksum.
        MisplacedSegment: it holds other groups than its name says.
        ValueError: it was written with another layout.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise BrokenSegment(f"{segment.file} cannot be read: {error}") from error
    _check_layout(segment, table.schema, layout)
    check_identity(segment.file, table, range(segment.first, segment.stop), layout.group_size)
    return from_table(table, layout)


def clean(folder: Path) -> int:
    """Remove what a crash left unfinished; return how many files that were."""
    unfinished = list(folder.glob(f"{UNFINISHED}*"))
    for file in unfinished:
        file.unlink()
    return len(unfinished)


def set_aside(segment: Segment) -> Path:
    """Move a segment into a folder beside the others, where nothing reads it, and keep it."""
    folder = segment.file.parent / ASIDE
    folder.mkdir(exist_ok=True)
    number = sum(1 for _ in folder.iterdir())
    target = folder / f"{number:06d}-{segment.file.name}"
    os.replace(segment.file, target)
    for changed in (folder, segment.file.parent):
        sync_folder(changed)
    return target


def to_table(first: int, columns: Columns, layout: Layout) -> pa.Table:
    """One row per completion, in the order of the groups."""
    count, size = columns.lengths.shape
    groups = np.repeat(np.arange(count), size)
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
        "finish_reason": _named(columns.finish_reasons),
        "version_spans": _row_lists(columns.spans, SPAN, count, size),
        "without_loss": _row_lists(columns.without_loss, STRETCH, count, size),
    }
    return pa.table(fields).replace_schema_metadata({FORMAT: WRITTEN, **_metadata(layout)})


def from_table(table: pa.Table, layout: Layout) -> Columns:
    """The inverse of `to_table`."""
    one = table.combine_chunks()
    shape = (table.num_rows // layout.group_size, layout.group_size)
    prompts = one["prompt_ids"].take(pa.array(np.arange(0, table.num_rows, layout.group_size)))
    prompt_lengths, prompt_ids = _flat(prompts.combine_chunks())
    lengths, token_ids = _flat(one["token_ids"].combine_chunks())
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
    )


def _write_table(table: pa.Table, out: object) -> None:
    pq.write_table(
        table,
        out,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,  # pyright: ignore[reportArgumentType]
        write_page_checksum=True,
    )


def _metadata(layout: Layout) -> dict[str, str]:
    return {
        "group_size": str(layout.group_size),
        "vocab_size": str(layout.vocab_size),
        "log_probs": np.dtype(layout.log_prob_dtype).name,
    }


def _check_layout(segment: Segment, schema: pa.Schema, layout: Layout) -> None:
    found = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    if found.get(FORMAT) not in READ:
        raise ValueError(
            f"{segment.file} has {FORMAT} = {found.get(FORMAT)}, and this version reads"
            f" {' and '.join(READ)}: open it with the ogrpo that wrote it, or a newer one."
        )
    for name, wanted in _metadata(layout).items():
        if found.get(name) != wanted:
            raise ValueError(
                f"{segment.file} has {name} = {found.get(name)}, the buffer {wanted}: "
                "open it with the layout it was written with."
            )


def _lists(lengths: npt.NDArray[np.int32], values: npt.NDArray[np.generic]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def _flat(lists: pa.ListArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.generic]]:
    lengths = np.diff(lists.offsets.to_numpy())
    return lengths, lists.flatten().to_numpy(zero_copy_only=False)


def _named(codes: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.ravel().astype(np.int8)), pa.array(FINISH_REASONS)
    )


def _row_lists(
    rows: npt.NDArray[np.int32], fields: pa.StructType, count: int, size: int
) -> pa.ListArray:
    """A list for each completion of what follows group's row and completion in the table."""
    per_completion = np.bincount(rows[:, 0] * size + rows[:, 1], minlength=count * size)
    values = pa.StructArray.from_arrays(
        [pa.array(column) for column in rows[:, 2:].T], fields=list(fields)
    )
    offsets = np.concatenate([[0], np.cumsum(per_completion)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _rows(table: pa.Table, name: str, size: int) -> npt.NDArray[np.int32]:
    """The inverse of `_row_lists`; no rows where an older file lacks the column."""
    if name not in table.column_names:
        return no_stretches()
    lists = table[name].combine_chunks()
    row = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
    parts = [part.to_numpy(zero_copy_only=False) for part in lists.flatten().flatten()]
    return np.stack([row // size, row % size, *parts], axis=1).astype(np.int32)
