"""Groups in memory: their rows, their tokens, the rows that few of them have, and the bytes."""

from dataclasses import dataclass

import numpy as np

from ogrpo.batch import Batch
from ogrpo.data.replay.columns import PER_GROUP, RARE, Columns, Int64Array, Layout, pad
from ogrpo.data.replay.table import SMALLEST, Table
from ogrpo.protocol import FloatArray, IntArray


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


class Memory:
    """The groups of one buffer, by id.

    Attributes:
        table: the rows of the groups, and the counters that draws depend on.
        nbytes: bytes that the live groups take up: tokens, log-probs, rare rows and their rows in
            the table.
    """

    def __init__(self, layout: Layout, capacity: int = SMALLEST) -> None:
        self.table, self.nbytes = Table(layout.group_size, capacity), 0
        self._rare: dict[str, dict[int, IntArray]] = {name: {} for name in RARE}

    @property
    def allocated(self) -> int:
        """Bytes allocated: those of the groups, and the table's empty rows."""
        return self.nbytes + (self.table.capacity - self.table.live) * self.table.row_bytes

    def put(self, ids: Int64Array, columns: Columns) -> None:
        """Stores copies of groups under ascending ids, none below the table's `next_id`."""
        token_bytes = columns.token_ids.itemsize + columns.log_probs.itemsize
        n_bytes = (columns.totals + columns.prompt_lengths) * token_bytes
        for name, rare in self._rare.items():
            rows = getattr(columns, name)
            for n in np.unique(rows[:, 0]).tolist():
                rare[int(ids[n])] = part = rows[rows[:, 0] == n, 1:]
                n_bytes[n] += part.nbytes
        self.table.append(ids, columns, n_bytes)
        places, rows = self.table.places(ids), self.table.rows
        prompts = np.split(columns.prompt_ids, np.cumsum(columns.prompt_lengths)[:-1])
        ends = np.cumsum(columns.totals)[:-1]
        tokens, log_probs = np.split(columns.token_ids, ends), np.split(columns.log_probs, ends)
        for n, place in enumerate(places.tolist()):
            rows.tokens[place] = np.concatenate([prompts[n], tokens[n]])
            rows.log_probs[place] = log_probs[n].copy()
        self.nbytes += int(rows.bytes[places].sum())

    def drop(self, ids: Int64Array) -> None:
        """Removes live groups."""
        self.nbytes -= int(self.table.rows.bytes[self.table.places(ids)].sum())
        self.table.remove(ids)
        for rare in self._rare.values():
            for id_ in ids.tolist() if rare else ():
                rare.pop(id_, None)

    def read(self, ids: Int64Array) -> Draw:
        """Returns copies of live groups, in the order of `ids`."""
        places, rows = self.table.places(ids), self.table.rows
        tokens, middles = rows.tokens[places].tolist(), rows.prompt_lengths[places].tolist()
        pairs = list(zip(tokens, middles, strict=True))
        columns = {name: getattr(rows, name)[places] for name in PER_GROUP}
        for name, rare in self._rare.items():
            held = [(n, rare[id_]) for n, id_ in enumerate(ids.tolist()) if id_ in rare]
            parts = [np.insert(part, 0, n, axis=1) for n, part in held]
            columns[name] = np.concatenate([np.zeros((0, RARE[name]), np.int32), *parts])
        return Draw(
            ids=ids,
            columns=Columns(
                **columns,
                prompt_ids=np.concatenate([array[:middle] for array, middle in pairs]),
                token_ids=np.concatenate([array[middle:] for array, middle in pairs]),
                log_probs=np.concatenate(rows.log_probs[places].tolist()),
            ),
            uses=rows.uses[places],
            staleness=self.table.features(places).staleness,
        )

    def oldest(self, excess: int) -> Int64Array:
        """Returns the ids of the fewest oldest groups that free at least `excess` bytes."""
        count = 16
        while True:
            ids = self.table.first(self.table.head, self.table.next_id, count)
            freed = np.cumsum(self.table.rows.bytes[self.table.places(ids)])
            if freed[-1] >= excess:
                return ids[: np.searchsorted(freed, excess) + 1]
            count *= 2
