"""Groups in memory: their rows, their tokens, what few of them have, and the bytes of it all."""

import numpy as np

from ogrpo.data.replay.arena import Arena
from ogrpo.data.replay.columns import Columns, Int64Array, Layout
from ogrpo.data.replay.draw import Draw
from ogrpo.data.replay.spans import Spans, span_bytes
from ogrpo.data.replay.table import SMALLEST, Table


class Memory:
    """What one buffer holds, by group id.

    Attributes:
        table: the rows of the groups, and the counters that draws depend on.
        nbytes: bytes that the groups held take up: tokens, log-probs, rare rows and their rows in
            the table; what is allocated beyond that is in `allocated`.
    """

    def __init__(self, layout: Layout, capacity: int = SMALLEST) -> None:
        self.table, self.nbytes = Table(layout.group_size, capacity), 0
        self.arena = Arena(layout, self.table)
        self._rare = {"spans": Spans(5), "without_loss": Spans(4)}

    @property
    def allocated(self) -> int:
        """Bytes allocated for rows and tokens."""
        return self.arena.nbytes + sum(column.nbytes for column in self.table.rows)

    def put(self, ids: Int64Array, columns: Columns) -> None:
        """Hold groups under ascending ids, none below the table's `next_id`."""
        tokens = columns.totals + columns.prompt_lengths
        rare = sum(span_bytes(getattr(columns, name), len(ids)) for name in self._rare)
        self.table.append(ids, columns, tokens * self.arena.token_bytes + rare)
        places = self.table.places(ids)
        self.arena.put(columns, places)
        for name, spans in self._rare.items():
            spans.put(ids, getattr(columns, name))
        self.nbytes += int(self.table.rows.bytes[places].sum())

    def drop(self, ids: Int64Array) -> None:
        """Let go of groups that are held."""
        places = self.table.places(ids)
        self.nbytes -= int(self.table.rows.bytes[places].sum())
        self.table.remove(ids)
        self.arena.drop(places)
        for spans in self._rare.values():
            spans.drop(ids.tolist())

    def read(self, ids: Int64Array) -> Draw:
        """Return copies of groups that are held, in the order of `ids`."""
        places, rows = self.table.places(ids), self.table.rows
        same = ("prompt_lengths", "lengths", "policy_versions", "temperatures", "finish_reasons")
        columns = Columns(
            **self.arena.get(places),
            **{name: getattr(rows, name)[places] for name in (*same, "rewards")},
            problems=rows.problem[places],
            spans=self._rare["spans"].get(ids),
            without_loss=self._rare["without_loss"].get(ids),
        )
        return Draw(
            ids=ids,
            columns=columns,
            uses=rows.uses[places],
            staleness=self.table.features(places).staleness,
        )

    def oldest(self, excess: int) -> Int64Array:
        """Return the ids of the fewest oldest groups that free at least `excess` bytes."""
        count = 16
        while True:
            ids = self.table.first(self.table.head, self.table.next_id, count)
            freed = np.cumsum(self.table.rows.bytes[self.table.places(ids)])
            if freed[-1] >= excess:
                return ids[: np.searchsorted(freed, excess) + 1]
            count *= 2
