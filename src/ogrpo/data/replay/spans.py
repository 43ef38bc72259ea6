"""What few groups have in memory, by group: version spans, and stretches without loss."""

from collections.abc import Iterable

import numpy as np

from ogrpo.data.replay.columns import Int64Array
from ogrpo.protocol import IntArray


class Spans:
    """The rows of a table such as `Columns.spans` by group id, for the groups that have any.

    Args:
        width: columns of the table, that of the group's row included.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._of: dict[int, IntArray] = {}

    def put(self, ids: Int64Array, table: IntArray) -> None:
        """Keep the rows of a table whose first column counts within `ids`."""
        for row in np.unique(table[:, 0]).tolist():
            self._of[int(ids[row])] = table[table[:, 0] == row, 1:]

    def get(self, ids: Int64Array) -> IntArray:
        """Return the rows of these groups as such a table."""
        found = [(n, self._of[id_]) for n, id_ in enumerate(ids.tolist()) if id_ in self._of]
        rows = [np.insert(part, 0, n, axis=1) for n, part in found]
        return np.concatenate([np.zeros((0, self._width), np.int32), *rows])

    def drop(self, ids: Iterable[int]) -> None:
        """Forget those of evicted groups."""
        if self._of:
            for id_ in ids:
                self._of.pop(id_, None)


def span_bytes(table: IntArray, groups: int) -> Int64Array:
    """Bytes that each group's rows take up, int64 `[groups]`."""
    return np.bincount(table[:, 0], minlength=groups) * table[:1, 1:].nbytes
