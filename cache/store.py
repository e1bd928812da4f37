"""The response cache: one SQLite file, with batched look-ups before scheduling and batched writes after.

A failure of the cache must not make an answer wrong or lose it. Every value is stored with a checksum that also covers
its key, and the first error of SQLite disables the cache, with one warning.
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import aiosqlite
import structlog

# Rows are in order of last use: `id` is that time in µs, times 2048, plus a number of the process. Eviction takes rows
# from the front, so it needs no second index. REPLACE fires the delete trigger only with recursive_triggers on.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS response (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, stored_at REAL NOT NULL, sealed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS response_size (bytes INTEGER NOT NULL);
INSERT INTO response_size SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM response_size);
CREATE TRIGGER IF NOT EXISTS response_added AFTER INSERT ON response BEGIN
    UPDATE response_size SET bytes = bytes + length(NEW.sealed) + {overhead}; END;
CREATE TRIGGER IF NOT EXISTS response_removed AFTER DELETE ON response BEGIN
    UPDATE response_size SET bytes = bytes - length(OLD.sealed) - {overhead}; END;
"""
_ROW_OVERHEAD_BYTES = 100  # of a row without its value: the key in table and index, two numbers, headers
_PRAGMAS = ("page_size = 8192", "journal_mode = WAL", "synchronous = NORMAL", "recursive_triggers = ON")
_EVICT = """
DELETE FROM response WHERE id <= (
    SELECT id FROM (SELECT id, sum(length(sealed) + {overhead}) OVER (ORDER BY id) AS upto FROM response)
    WHERE upto >= ? LIMIT 1)
"""
_BUSY_TIMEOUT_S = 0.5  # another process's transactions take milliseconds
_CHECKSUM_BYTES = 8
# Errors of sqlite3 for a damaged file, whose messages may quote bytes that are not text, and whose lengths may be huge.
_FILE_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
_CHUNK_KEYS = 512  # most keys in one query
_LOW_WATER = 0.95  # share of max_bytes that eviction leaves, so that it is rare
_MAX_USED = 2048  # uses remembered; writing more would delay look-ups


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was opened, and its size."""

    hits: int  # keys
    misses: int  # keys
    bytes: int  # size of all rows at the last write, with expired ones
    enabled: bool  # False from the first error on


class ResponseCache:
    """Answers by key, bounded by bytes and age. One event loop owns it; processes may share its file.

    Least recently used rows are evicted first. Reads do not write: uses are kept in memory until a write that evicts or
    finds many of them. Reads alone drop the oldest uses, a crash drops all.

    No method raises for an error of the file or the disk. `cache_disabled` is logged once; then look-ups find nothing
    and writes do nothing.
    """

    def __init__(self, path: Path | str, *, max_bytes: int, ttl_s: float, clock: Callable[[], float]) -> None:
        """Called by `open` only."""
        self._path = str(path)
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._db: aiosqlite.Connection | None = None
        self._writing = asyncio.Lock()  # one writer: a transaction spans several steps of the connection's thread
        self._enabled = True
        self._hits = self._misses = self._bytes = 0
        self._used: dict[bytes, int] = {}  # key -> id it moves to
        self._last_us = 0
        self._process = random.getrandbits(11)

    @classmethod
    async def open(
        cls, path: Path | str, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.time
    ) -> Self:
        """Open or create the file; ":memory:" makes a cache that ends with the process.

        Args:
            path: its directory must exist.
            max_bytes: bound on the size of all rows, which is about the size of the file.
            ttl_s: age in seconds at which an answer expires.
            clock: Unix time in seconds.
        """
        cache = cls(path, max_bytes=max_bytes, ttl_s=ttl_s, clock=clock)
        try:
            await cache._guard(cache._open())
        except BaseException:
            cache._enabled = False
            await cache.close()
            raise
        return cache

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def stats(self) -> CacheStats:
        """Counts since `open`."""
        return CacheStats(self._hits, self._misses, self._bytes, self._enabled)

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are stored, intact and not expired. Called once a batch of records."""
        wanted = list(dict.fromkeys(keys))
        found: dict[bytes, bytes] = {}
        if self._enabled and wanted:
            await self._guard(self._get(wanted, found))
        self._hits += len(found)
        self._misses += len(wanted) - len(found)
        return found

    async def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Store values under their keys in one transaction, then evict. Called after each engine batch."""
        if self._enabled and items:
            await self._guard(self._put(items))

    async def close(self) -> None:
        """Write the remembered uses and close the file. May be called twice."""
        if self._enabled and self._db is not None:
            await self._guard(self._flush())
        self._enabled = False
        async with self._writing:
            db, self._db = self._db, None
            if db is not None:
                await self._guard(db.close())

    async def _guard(self, step: Awaitable[None]) -> None:
        """Run one step; the first error of the file disables the cache."""
        try:
            await step
        except _FILE_ERRORS as error:
            if self._enabled:
                self._enabled = False
                structlog.get_logger().warning(
                    "cache_disabled", reason=f"{type(error).__name__}: {error}", path=self._path
                )

    async def _open(self) -> None:
        # Connected here first: aiosqlite's thread survives a failure to connect, and may outlive the event loop.
        await asyncio.to_thread(lambda: sqlite3.connect(self._path).close())
        self._db = await aiosqlite.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        for pragma in _PRAGMAS:
            await self._db.execute_fetchall(f"PRAGMA {pragma}")
        async with self._transaction() as db:
            for statement in _statements(_SCHEMA.format(overhead=_ROW_OVERHEAD_BYTES)):
                await db.execute_fetchall(statement)
            self._bytes = await self._size(db)

    async def _get(self, wanted: Sequence[bytes], found: dict[bytes, bytes]) -> None:
        fresh_after = self._clock() - self._ttl_s
        for chunk in _chunks(wanted):
            rows = await self._connection.execute_fetchall(
                f"SELECT key, sealed FROM response WHERE stored_at > ? AND key IN ({','.join('?' * len(chunk))})",
                (fresh_after, *chunk),
            )
            asked = set(chunk)
            for key, sealed in rows:
                value = _unseal(key, sealed) if key in asked else None
                if value is not None:
                    found[key] = value
                    self._remember(key)

    def _remember(self, key: bytes) -> None:
        self._used.pop(key, None)  # the dict is in order of use
        self._used[key] = self._next_id()
        if len(self._used) > _MAX_USED:
            del self._used[next(iter(self._used))]

    async def _put(self, items: Mapping[bytes, bytes]) -> None:
        now = self._clock()
        rows = [(self._next_id(), key, now, _seal(key, value)) for key, value in items.items()]
        async with self._transaction() as db:
            await db.executemany("INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?)", rows)
            for key in items:
                self._used.pop(key, None)
            size = await self._size(db)
            if size > self._max_bytes or len(self._used) >= _MAX_USED:
                await self._write_used(db)
            if size > self._max_bytes:
                await self._evict(db, size - int(self._max_bytes * _LOW_WATER))
                size = await self._size(db)
        self._bytes = size

    async def _flush(self) -> None:
        async with self._transaction() as db:
            await self._write_used(db)

    async def _write_used(self, db: aiosqlite.Connection) -> None:
        """Move the rows that were read since the last call to their places in the order of use."""
        used, self._used = self._used, {}
        moves = [(place, key) for key, place in used.items()]
        await db.executemany("UPDATE OR IGNORE response SET id = ? WHERE key = ?", moves)

    async def _evict(self, db: aiosqlite.Connection, excess_bytes: int) -> None:
        await db.execute_fetchall(_EVICT.format(overhead=_ROW_OVERHEAD_BYTES), (excess_bytes,))

    async def _size(self, db: aiosqlite.Connection) -> int:
        rows = list(await db.execute_fetchall("SELECT bytes FROM response_size"))
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise sqlite3.DatabaseError("the table response_size is damaged")
        return rows[0][0]

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """The connection inside one write transaction, which is rolled back on any error and on cancellation."""
        async with self._writing:
            db = self._connection
            try:
                await db.execute_fetchall("BEGIN IMMEDIATE")
                yield db
                await db.execute_fetchall("COMMIT")
            except BaseException:
                await db.rollback()
                raise

    @property
    def _connection(self) -> aiosqlite.Connection:
        if self._db is None:
            raise sqlite3.ProgrammingError("The cache was closed while it was in use.")
        return self._db

    def _next_id(self) -> int:
        """An id for a row used now, above all earlier ids of this process even if the clock steps back."""
        self._last_us = max(self._last_us + 1, int(self._clock() * 1e6))
        return self._last_us << 11 | self._process


def _seal(key: bytes, value: bytes) -> bytes:
    return _checksum(key, value) + value


def _unseal(key: bytes, sealed: object) -> bytes | None:
    """The value, or None if it is not what was stored under this key, as in a damaged file."""
    if not isinstance(sealed, bytes):
        return None
    value = sealed[_CHECKSUM_BYTES:]
    return value if sealed[:_CHECKSUM_BYTES] == _checksum(key, value) else None


def _checksum(key: bytes, value: bytes) -> bytes:
    return blake2b(value, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _chunks(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Chunks whose sizes are powers of two, by repeating the last key, so that few statements are prepared."""
    for start in range(0, len(keys), _CHUNK_KEYS):
        chunk = list(keys[start : start + _CHUNK_KEYS])
        size = 1 << (len(chunk) - 1).bit_length()
        yield chunk + chunk[-1:] * (size - len(chunk))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit the open transaction."""
    statement = ""
    for line in script.strip().splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
