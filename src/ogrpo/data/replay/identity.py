"""Whether a segment's file is the one that its name says: its columns, and the ids in it."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS = (
    *("group", "completion", "problem", "prompt_ids", "token_ids", "log_probs", "reward"),
    *("policy_version", "temperature", "finish_reason", "version_spans"),
)
"""What the files of every format have."""


class BrokenSegment(ValueError):
    """A file that should hold certain groups and does not, or cannot be read."""


class MisplacedSegment(BrokenSegment):
    """A whole file that holds other groups than its name or the buffer's state says."""


def check_identity(file: Path, table: pa.Table, ids: range, group_size: int) -> None:
    """Refuse a file that does not hold the groups `ids`, in order, whole.

    Raises:
        MisplacedSegment: it lacks a column, or a row is another than it should be.
    """
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise MisplacedSegment(
            f"{file} lacks {', '.join(missing)}: put the file back that had this name."
        )
    groups, completions = (_numbers(file, table, name) for name in ("group", "completion"))
    whole = np.array_equal(groups, np.repeat(np.asarray(ids), group_size))
    if whole and np.array_equal(completions, np.tile(np.arange(group_size), len(ids))):
        return
    what = f"groups {groups.min()} to {groups.max()}" if len(groups) else "no group"
    raise MisplacedSegment(
        f"{file} holds {what} in {len(groups)} rows, its name says groups {ids.start} to"
        f" {ids.stop - 1} of {group_size} completions each: put the file back that had this name."
    )


def _numbers(file: Path, table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    if not pa.types.is_integer(table[name].type):
        raise MisplacedSegment(f"{file} has no column {name!r} of whole numbers.")
    if table[name].null_count:
        raise MisplacedSegment(f"{file} has rows without {name!r}.")
    return table[name].to_numpy().astype(np.int64)
