"""Strings that were met before, any number of them, in bounded memory."""

import sqlite3
from typing import Self

from penstock.producer.files.row_blocks import TableError


class SeenIds:
    """A set that SQLite keeps in a temporary file, of which it holds some pages in memory. A context manager.

    Called from any thread, by one at a time.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("CREATE TABLE ids (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, one: str) -> bool:
        """Add a string; whether it is new. Raises TableError where the temporary file cannot be written."""
        try:
            added = self._database.execute(
                "INSERT OR IGNORE INTO ids VALUES (?)", (one.encode(errors="surrogatepass"),)
            )
        except sqlite3.Error as error:
            raise TableError(f"The custom_ids cannot be kept in a temporary file (TMPDIR): {error}.") from error
        return added.rowcount == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
