"""Version spans in memory: kept only for groups that have any."""

from collections.abc import Iterable

import numpy as np

from ogrpo.data.replay.columns import Int64Array
from ogrpo.rollout.protocol import IntArray


class Spans:
    """int32 `[m, 4]` (completion, version, start, end) by group id."""

    def __init__(self) -> None:
        self._of: dict[int, IntArray] = {}

    def put(self, ids: Int64Array, spans: IntArray) -> None:
        """Keep the spans of `Columns.spans`, whose first column counts within `ids`."""
        for row in np.unique(spans[:, 0]).tolist():
            self._of[int(ids[row])] = spans[spans[:, 0] == row, 1:]

    def get(self, ids: Int64Array) -> IntArray:
        """Return them as `Columns.spans`."""
        found = [(n, self._of[id_]) for n, id_ in enumerate(ids.tolist()) if id_ in self._of]
        rows = [np.insert(spans, 0, n, axis=1) for n, spans in found]
        return np.concatenate([np.zeros((0, 5), np.int32), *rows])

    def drop(self, ids: Iterable[int]) -> None:
        """Forget those of evicted groups."""
        if self._of:
            for id_ in ids:
                self._of.pop(id_, None)


def span_bytes(spans: IntArray, groups: int) -> Int64Array:
    """Bytes that the spans of each group take up, int64 `[groups]`."""
    return np.bincount(spans[:, 0], minlength=groups) * spans[:1, 1:].nbytes
