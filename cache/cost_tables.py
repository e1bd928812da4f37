"""Measured cost tables, and losses of a precision, kept between runs in one SQLite file that processes may share.

A lost file costs a few seconds of measurement. As with the response cache, its failure fails no request.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import aiosqlite
import structlog

from penstock.cache.private_files import check_regular, make_private_directory, make_private_file

_SCHEMA = {
    "cost_table": """
CREATE TABLE IF NOT EXISTS cost_table (
    device TEXT NOT NULL, model TEXT NOT NULL, revision TEXT NOT NULL, dtype TEXT NOT NULL, runtime TEXT NOT NULL,
    stored_at REAL NOT NULL, value TEXT NOT NULL, PRIMARY KEY (device, model, revision, dtype, runtime)) WITHOUT ROWID
""",
    "precision_loss": """
CREATE TABLE IF NOT EXISTS precision_loss (
    device TEXT NOT NULL, model TEXT NOT NULL, revision TEXT NOT NULL, dtype TEXT NOT NULL, runtime TEXT NOT NULL,
    stored_at REAL NOT NULL, value TEXT NOT NULL, PRIMARY KEY (device, model, revision, dtype, runtime)) WITHOUT ROWID
""",
    "served_name": """
CREATE TABLE IF NOT EXISTS served_name (
    revision TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (revision, name)) WITHOUT ROWID
""",
}
_BUSY_TIMEOUT_S = 0.5  # another process's writes take milliseconds, and the start of a worker waits for them
# Errors for a damaged file or row (ValueError: of JSON and of text), and for a directory.
_FILE_ERRORS = (sqlite3.Error, OSError, ValueError, OverflowError, MemoryError, RecursionError)


@dataclass(frozen=True, slots=True)
class CostKey:
    """Everything that a batch's time depends on. A table is used for its own key only."""

    device: str  # a processor's name and cores, or a GPU's name
    model: str
    revision: str
    dtype: str
    runtime: str  # versions and engine: "penstock 0.1.0, torch 2.11.0, packed"

    def differences(self, other: "CostKey") -> dict[str, str]:
        """Field -> the other's value, for fields that differ."""
        mine, its = asdict(self), asdict(other)
        return {name: value for name, value in its.items() if mine[name] != value}


class CostTables:
    """Tables by key. Used a few times in a process, so each call opens and closes the file.

    No method raises for an error of the file or the disk: `cost_tables_unusable` is logged once, and no table is found.
    """

    def __init__(self, path: Path | str) -> None:
        """The first `put` creates `path` and its directory."""
        self._path = Path(path)
        self._warned = False

    async def get(self, key: CostKey) -> dict[str, Any] | None:
        """The table of this key; None if there is none or it cannot be read."""
        return await self._get("cost_table", key)

    async def put(self, key: CostKey, table: dict[str, Any]) -> bool:
        """Store a table, plain JSON data, under this key; returns True if it was stored."""
        return await self._put("cost_table", key, table)

    async def get_loss(self, key: CostKey) -> dict[str, Any] | None:
        """Losses of the model of this key in its precision; None as of `get`."""
        return await self._get("precision_loss", key)

    async def put_loss(self, key: CostKey, loss: dict[str, Any]) -> bool:
        """Store a loss as `put` stores a table."""
        return await self._put("precision_loss", key, loss)

    async def nearest(self, key: CostKey) -> CostKey | None:
        """The key of this model that differs in the fewest fields, which explains why there is no table."""
        others = [other for other in await self.keys() if other.model == key.model]
        return min(others, key=lambda other: len(key.differences(other)), default=None)

    async def keys(self) -> list[CostKey]:
        """The keys of all tables."""
        return [CostKey(*row) for row in await self._run("cost_table", f"SELECT {_COLUMNS} FROM cost_table")]

    async def add_served_name(self, revision: str, name: str) -> None:
        """Note that a model of this revision is served under this name. Called after its table was loaded or stored."""
        if name not in (await self.served_names()).get(revision, ()):
            await self._run("served_name", "INSERT OR IGNORE INTO served_name VALUES (?, ?)", (revision, name))

    async def served_names(self) -> dict[str, set[str]]:
        """Revision -> the names that it was served under."""
        names: dict[str, set[str]] = {}
        for revision, name in await self._run("served_name", "SELECT revision, name FROM served_name"):
            names.setdefault(revision, set()).add(name)
        return names

    async def _get(self, table: str, key: CostKey) -> dict[str, Any] | None:
        rows = await self._run(table, f"SELECT value FROM {table} WHERE {_WHERE}", astuple(key))
        with self._warning():
            return _parsed(rows[0][0]) if rows else None
        return None

    async def _put(self, table: str, key: CostKey, value: dict[str, Any]) -> bool:
        row = (*astuple(key), time.time(), json.dumps(value, allow_nan=False))
        with self._warning():
            await asyncio.to_thread(make_private_directory, self._path.parent)
            async with self._open(table) as db:
                await db.execute_fetchall(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return True
        return False

    async def _run(self, table: str, statement: str, parameters: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """The rows of a statement about a table, all of text; none where there is no file, or it cannot be used."""
        if self._path.exists():
            with self._warning():
                async with self._open(table) as db:
                    return [tuple(map(_text, row)) for row in await db.execute_fetchall(statement, parameters)]
        return []

    @asynccontextmanager
    async def _open(self, table: str) -> AsyncIterator[aiosqlite.Connection]:
        """With this table. Others are not made: a file that cannot be written may be of a version without them."""
        # Connected here first: aiosqlite's thread survives a failure to connect, and may outlive the event loop.
        await asyncio.to_thread(self._try_to_connect)
        async with aiosqlite.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None) as db:
            # Text is decoded by `_text`: if sqlite3 fails to decode it, its statement stays open and holds the lock.
            db.text_factory = bytes
            there = {_text(row[0]) for row in await db.execute_fetchall("SELECT name FROM sqlite_master")}
            if table not in there:
                await db.execute_fetchall(_SCHEMA[table])
            yield db

    def _try_to_connect(self) -> None:
        """Raises OSError and sqlite3.Error."""
        check_regular(str(self._path))
        make_private_file(str(self._path))
        sqlite3.connect(self._path).close()

    @contextmanager
    def _warning(self) -> Iterator[None]:
        """Errors of the file end the block, and the first one is logged."""
        try:
            yield
        except _FILE_ERRORS as error:
            if not self._warned:
                self._warned = True
                reason = f"{type(error).__name__}: {error}"
                structlog.get_logger().warning("cost_tables_unusable", reason=reason, path=str(self._path))


_COLUMNS = ", ".join(field.name for field in fields(CostKey))
_WHERE = " AND ".join(f"{field.name} = ?" for field in fields(CostKey))


def _text(value: object) -> str:
    """A column's text. Raises ValueError for other types, which a damaged file may hold."""
    if not isinstance(value, bytes):
        raise ValueError(f"a column of the table holds {type(value).__name__}, not text")
    return value.decode()


def _parsed(value: str) -> dict[str, Any]:
    """A row's JSON object. Raises ValueError."""
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise ValueError("a row of the table is no JSON object")
    return parsed
