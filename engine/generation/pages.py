"""Paged memory of keys and values, as page numbers only (Kwon et al. 2023, section 4).

A page holds a fixed number of positions of every layer. A table has a row of pages for each sequence of positions.
Beams share pages by reference counts. Nothing here knows of tensors.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

NO_PAGE = 0  # fills tables behind a row's last page; never written


class PagePool:
    """Free pages and reference counts. Callers reserve before they take, so `take` finds a page."""

    def __init__(self, num_pages: int) -> None:
        """`num_pages` counts NO_PAGE."""
        self._counts = np.zeros(num_pages, np.int64)
        self._counts[NO_PAGE] = 1
        self._free = list(range(num_pages - 1, NO_PAGE, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> Int64Array:
        """Pages with one reference each."""
        if count > len(self._free):
            raise RuntimeError("a page was taken that no reservation covers. This is a bug.")
        first = len(self._free) - count
        pages = np.array(self._free[first:], np.int64)
        del self._free[first:]
        self._counts[pages] = 1
        return pages

    def is_shared(self, page: int) -> bool:
        return bool(self._counts[page] > 1)

    def share(self, pages: Int64Array) -> None:
        """One more reference for each page; NO_PAGE is skipped."""
        np.add.at(self._counts, pages[pages != NO_PAGE], 1)

    def drop(self, pages: Int64Array) -> None:
        """One reference less for each page; those without any become free. NO_PAGE is skipped."""
        pages = pages[pages != NO_PAGE]
        np.subtract.at(self._counts, pages, 1)
        self._free.extend(np.unique(pages[self._counts[pages] == 0]).tolist())

    def check_integrity(self, *tables: "PageTable") -> None:
        """Raise unless each page is as often referenced as `tables` hold it, and free where they do not."""
        held = np.bincount(np.concatenate([table.pages.ravel() for table in tables]), minlength=len(self._counts))
        held[NO_PAGE] = 1
        if not np.array_equal(self._counts, held):
            raise RuntimeError("references of pages are not those of the tables. This is a bug.")
        if sorted(self._free) != np.flatnonzero(held == 0).tolist():
            raise RuntimeError("the free pages are not those without references. This is a bug.")


class PageTable:
    """Rows of pages out of one pool. A row holds the positions of one source or of one hypothesis."""

    def __init__(self, pool: PagePool, num_rows: int, max_positions: int, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self.pages = np.full((num_rows, pages_of(max_positions, page_size)), NO_PAGE, np.int64)
        self.lengths = np.zeros(num_rows, np.int64)  # positions of each row

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    def open(self, count: int) -> Int64Array:
        """`count` empty rows."""
        first = len(self._free_rows) - count
        rows = np.array(self._free_rows[first:], np.int64)
        del self._free_rows[first:]
        return rows

    def close(self, rows: Int64Array) -> Int64Array:
        """Give rows back with their pages, which are returned."""
        pages = self.pages[rows].ravel()
        self._pool.drop(pages)
        self.pages[rows] = NO_PAGE
        self.lengths[rows] = 0
        self._free_rows.extend(rows[::-1].tolist())
        closed: Int64Array = pages[pages != NO_PAGE]
        return closed

    def fill(self, rows: Int64Array, counts: Int64Array) -> None:
        """Give each of some empty rows its count of positions."""
        is_filled = np.arange(self.pages.shape[1]) * self._page_size < counts[:, None]
        pages = np.full(is_filled.shape, NO_PAGE, np.int64)
        pages[is_filled] = self._pool.take(int(is_filled.sum()))
        self.pages[rows], self.lengths[rows] = pages, counts

    def slots(self, rows: Int64Array) -> Int64Array:
        """The slot of each position of some rows, one row after the other: page * page size + offset."""
        size, pages = self._page_size, self.pages[rows]
        slots = (pages[:, :, None] * size + np.arange(size)).reshape(len(rows), -1)
        own: Int64Array = slots[np.arange(slots.shape[1]) < self.lengths[rows, None]]
        return own

    def extend(self, rows: Int64Array) -> Int64Array:
        """Give each row one more position. Returns their slots."""
        columns, offsets = np.divmod(self.lengths[rows], self._page_size)
        is_new = offsets == 0
        self.pages[rows[is_new], columns[is_new]] = self._pool.take(int(is_new.sum()))
        self.lengths[rows] += 1
        slots: Int64Array = self.pages[rows, columns] * self._page_size + offsets
        return slots

    def retract(self, rows: Int64Array) -> None:
        """Take back each row's last position: `extend` undone."""
        self.lengths[rows] -= 1
        columns, offsets = np.divmod(self.lengths[rows], self._page_size)
        emptied, columns = rows[offsets == 0], columns[offsets == 0]
        self._pool.drop(self.pages[emptied, columns])
        self.pages[emptied, columns] = NO_PAGE

    def reorder(self, rows: Int64Array, parents: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Continue in each of `rows` what the row of `parents` at its place has held until now.

        Full pages are shared. Of a last page that is not full each row gets a copy of its own: the caller copies the
        returned pages, first to second, before anything else is written.
        """
        moved = rows != parents
        if moved.any():
            old, new = self.pages[rows[moved]], self.pages[parents[moved]]
            self._pool.share(new.ravel())
            self._pool.drop(old.ravel())
            lengths = self.lengths[parents[moved]]
            self.pages[rows[moved]], self.lengths[rows[moved]] = new, lengths
        copies = [copy for row in rows.tolist() if (copy := self._own_last_page(row)) is not None]
        sources, destinations = np.array(copies, np.int64).reshape(-1, 2).T
        return sources, destinations

    def check_integrity(self, open_rows: Sequence[int]) -> None:
        """Raise unless `open_rows` and the free rows are all rows, and each has the pages of its positions."""
        if sorted([*self._free_rows, *open_rows]) != list(range(len(self.lengths))):
            raise RuntimeError("a row is neither free nor in use, or both. This is a bug.")
        is_needed = np.arange(self.pages.shape[1]) * self._page_size < self.lengths[:, None]
        if self.lengths[self._free_rows].any() or not np.array_equal(self.pages != NO_PAGE, is_needed):
            raise RuntimeError("rows have other pages than their positions need. This is a bug.")

    def _own_last_page(self, row: int) -> tuple[int, int] | None:
        column, offset = divmod(int(self.lengths[row]), self._page_size)
        shared = int(self.pages[row, column]) if offset else NO_PAGE
        if shared == NO_PAGE or not self._pool.is_shared(shared):
            return None
        self._pool.drop(np.array([shared]))
        (own,) = self._pool.take(1).tolist()
        self.pages[row, column] = own
        return shared, own


def pages_of(positions: int, page_size: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // page_size)
