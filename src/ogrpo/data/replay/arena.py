"""Token memory: pages that are written once, and dropped or thinned out as their groups leave."""

import numpy as np

from ogrpo.data.replay.columns import Columns, Int64Array, Layout
from ogrpo.data.replay.table import Table

PAGE_TOKENS = 1 << 20
HOLES = 0.5  # tolerated tokens of groups that left, in tokens alive


class Page:
    """Ids and log-probs of some groups: of each its prompt, then its completions, without gaps.

    The log-prob places of a prompt stay unused, so that one offset serves both arrays.
    """

    def __init__(self, size: int, layout: Layout) -> None:
        self.ids = np.empty(size, layout.id_dtype)
        self.log_probs = np.empty(size, layout.log_prob_dtype)
        self.used = self.live = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.ids.nbytes + self.log_probs.nbytes


class Arena:
    """The pages of one buffer, and which group lies where (`page` and `start` in the table).

    A page that holds no live group is dropped. Where the holes that groups leave grow beyond half
    of what is alive (and two pages), the live groups of the emptiest pages move to the page being
    filled. So tokens written are at most 1.5 times those alive and two pages. Groups that leave in
    the order they came are never moved, unless the buffer is small.
    """

    def __init__(self, layout: Layout, table: Table) -> None:
        self._layout, self._table = layout, table
        self._pages: dict[int, Page] = {}
        self._open = -1

    @property
    def nbytes(self) -> int:
        """Bytes allocated, holes included."""
        return sum(page.nbytes for page in self._pages.values())

    @property
    def token_bytes(self) -> int:
        """Bytes of one token and its log-prob."""
        return self._layout.id_dtype.itemsize + np.dtype(self._layout.log_prob_dtype).itemsize

    def put(self, columns: Columns, places: Int64Array) -> None:
        """Copy the tokens of `columns`, whose groups lie at `places` of the table."""
        prompts = np.split(columns.prompt_ids, np.cumsum(columns.prompt_lengths)[:-1])
        ends = np.cumsum(columns.totals)[:-1]
        tokens, log_probs = np.split(columns.token_ids, ends), np.split(columns.log_probs, ends)
        for place, prompt, ids, lps in zip(
            places.tolist(), prompts, tokens, log_probs, strict=True
        ):
            page, start = self._room(place, len(prompt) + len(ids))
            middle, end = start + len(prompt), start + len(prompt) + len(ids)
            page.ids[start:middle] = prompt
            page.ids[middle:end] = ids
            page.log_probs[middle:end] = lps
        self._tidy()

    def get(self, places: Int64Array) -> dict[str, np.ndarray]:
        """Return copies of `prompt_ids`, `token_ids` and `log_probs` of the groups at `places`."""
        rows = self._table.rows
        starts = rows.start[places]
        middles = starts + rows.prompt_lengths[places]
        ends = middles + rows.lengths[places].sum(axis=1)
        where = list(zip(starts.tolist(), middles.tolist(), ends.tolist(), strict=True))
        pages = [self._pages[page] for page in rows.page[places].tolist()]
        at = list(zip(pages, where, strict=True))
        return {
            "prompt_ids": np.concatenate([p.ids[start:middle] for p, (start, middle, _) in at]),
            "token_ids": np.concatenate([p.ids[middle:end] for p, (_, middle, end) in at]),
            "log_probs": np.concatenate([p.log_probs[middle:end] for p, (_, middle, end) in at]),
        }

    def drop(self, places: Int64Array) -> None:
        """Take note that the groups at `places` are gone from the table."""
        pages, sizes = self._table.rows.page[places], self._sizes(places)
        for number in np.unique(pages).tolist():
            self._pages[number].live -= int(sizes[pages == number].sum())
        self._tidy()

    def _sizes(self, places: Int64Array) -> Int64Array:
        rows = self._table.rows
        return rows.prompt_lengths[places] + rows.lengths[places].sum(axis=1, dtype=np.int64)

    def _room(self, place: int, size: int) -> tuple[Page, int]:
        page = self._pages.get(self._open)
        if page is None or page.used + size > len(page.ids):
            self._open += 1
            page = self._pages[self._open] = Page(max(size, PAGE_TOKENS), self._layout)
        start = page.used
        page.used, page.live = start + size, page.live + size
        rows = self._table.rows
        rows.page[place], rows.start[place] = self._open, start
        return page, start

    def _tidy(self) -> None:
        closed = {n: page for n, page in self._pages.items() if n != self._open}
        for number in [n for n, page in closed.items() if page.live == 0]:
            del self._pages[number], closed[number]
        by_fill = sorted(closed, key=lambda n: closed[n].live / closed[n].used)
        while by_fill and self._has_too_many_holes():
            number, rows = by_fill.pop(0), self._table.rows
            self._move(closed[number], np.flatnonzero(rows.alive & (rows.page == number)))
            del self._pages[number]

    def _has_too_many_holes(self) -> bool:
        used = sum(page.used for page in self._pages.values())
        live = sum(page.live for page in self._pages.values())
        return used > (1 + HOLES) * live + 2 * PAGE_TOKENS

    def _move(self, page: Page, places: Int64Array) -> None:
        for place, size in zip(places.tolist(), self._sizes(places).tolist(), strict=True):
            start = int(self._table.rows.start[place])
            target, to = self._room(place, size)
            target.ids[to : to + size] = page.ids[start : start + size]
            target.log_probs[to : to + size] = page.log_probs[start : start + size]
