"""The rows of the response cache in SQLite: schema, look-up, insertion, order of use, eviction.

Each function is one step, or part of one, on a connection that the caller owns.
"""

import sqlite3
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import aiosqlite

ROW_OVERHEAD_BYTES = 100  # of a row without its value: the key in table and index, two numbers, headers
# Rows are in order of last use: `id` is that time in µs, times 2048, plus a number of the process. Eviction takes rows
# from the front, so it needs no second index. A trigger counts deletions, `insert` what it adds: a trigger for each
# insertion would take a fifth of its time. REPLACE fires the delete trigger only with recursive_triggers on.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS response (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, stored_at REAL NOT NULL, sealed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS response_size (bytes INTEGER NOT NULL);
INSERT INTO response_size SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM response_size);
CREATE TRIGGER IF NOT EXISTS response_removed AFTER DELETE ON response BEGIN
    UPDATE response_size SET bytes = bytes - length(OLD.sealed) - {ROW_OVERHEAD_BYTES}; END;
"""
_TABLES = "SELECT count(*) FROM sqlite_master WHERE name IN ('response', 'response_size', 'response_removed')"
_NUM_TABLES = 3  # with the trigger
_PRAGMAS = ("page_size = 8192", "journal_mode = WAL", "synchronous = NORMAL", "recursive_triggers = ON")
# The oldest rows whose sizes add up to ?2 bytes, or all of the ?1 oldest rows if these are smaller.
_EVICT = f"""
WITH oldest AS (SELECT id, length(sealed) + {ROW_OVERHEAD_BYTES} AS bytes FROM response ORDER BY id LIMIT ?1),
     summed AS (SELECT id, sum(bytes) OVER (ORDER BY id) AS upto FROM oldest)
DELETE FROM response WHERE id <= coalesce(
    (SELECT min(id) FROM summed WHERE upto >= ?2), (SELECT max(id) FROM oldest))
"""
CHECKSUM_BYTES = 4  # before each value
_MAX_ID = (1 << 63) - (1 << 55)  # ids above it are of a damaged file; SQLite's own bound is 1 << 63
_CHUNK_KEYS = 512  # most keys in one query

CachedRow = tuple[int, bytes, float, bytes]  # id, key, stored_at in Unix seconds, value under its checksum


class DamagedTable(sqlite3.DatabaseError):
    """A table of the cache has not the content that the cache wrote."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


async def prepare_writer(db: aiosqlite.Connection) -> None:
    """Set up a connection that writes; creates the tables if they are missing, which alone takes the write lock."""
    for pragma in _PRAGMAS:
        await db.execute_fetchall(f"PRAGMA {pragma}")
    if list(await db.execute_fetchall(_TABLES)) == [(_NUM_TABLES,)]:
        return
    async with transaction(db):
        for statement in _statements(_SCHEMA):
            await db.execute_fetchall(statement)


@asynccontextmanager
async def transaction(db: aiosqlite.Connection) -> AsyncIterator[None]:
    """A write transaction. After an error the caller closes the connection, which rolls back."""
    await db.execute_fetchall("BEGIN IMMEDIATE")
    yield
    await db.execute_fetchall("COMMIT")


async def look_up(db: aiosqlite.Connection, keys: Sequence[bytes], now: float, ttl_s: float) -> dict[bytes, bytes]:
    """The values of those keys that are stored, not expired at `now` (Unix seconds), and intact.

    A row of the future has expired: the clock was set back, and the row's age is not known.
    """
    found: dict[bytes, bytes] = {}
    for chunk in _chunks(keys):
        rows = await db.execute_fetchall(
            "SELECT key, sealed FROM response "
            f"WHERE stored_at > ? AND stored_at <= ? AND key IN ({','.join('?' * len(chunk))})",
            (now - ttl_s, now, *chunk),
        )
        asked = set(chunk)
        for key, sealed in rows:
            value = _unseal(key, sealed) if key in asked else None
            if value is not None:
                found[key] = value
    return found


async def insert(db: aiosqlite.Connection, rows: Sequence[CachedRow]) -> None:
    """Store rows, in place of earlier ones with the same keys."""
    await db.executemany("INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?)", rows)
    added_bytes = sum([len(sealed) for _, _, _, sealed in rows]) + len(rows) * ROW_OVERHEAD_BYTES
    await db.execute_fetchall("UPDATE response_size SET bytes = bytes + ?", (added_bytes,))


async def move(db: aiosqlite.Connection, ids: Sequence[tuple[int, bytes]]) -> None:
    """Give rows new ids (id, key), which are their places in the order of use."""
    await db.executemany("UPDATE OR IGNORE response SET id = ? WHERE key = ?", ids)


async def evict(db: aiosqlite.Connection, excess_bytes: int, max_rows: int) -> None:
    """Delete the least recently used rows until `excess_bytes` are free, but at most `max_rows` of them."""
    await db.execute_fetchall(_EVICT, (max_rows, excess_bytes))


async def size_and_last_id(db: aiosqlite.Connection) -> tuple[int, int]:
    """The size of all rows in bytes, and the id of the last used row; 0 without rows."""
    rows = list(
        await db.execute_fetchall(
            "SELECT bytes, coalesce((SELECT max(id) FROM response WHERE id < ?), 0) FROM response_size", (_MAX_ID,)
        )
    )
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise DamagedTable("the table response_size is damaged")
    return rows[0][0], rows[0][1]


def seal(key: bytes, value: bytes) -> bytes:
    """A value under a CRC-32, as Kafka's own batches, that also covers its key."""
    return _checksum(key, value) + value


def _unseal(key: bytes, sealed: object) -> bytes | None:
    """The value, or None if it is not what was stored under this key, as in a damaged file."""
    if not isinstance(sealed, bytes):
        return None
    value = sealed[CHECKSUM_BYTES:]
    return value if sealed[:CHECKSUM_BYTES] == _checksum(key, value) else None


def _checksum(key: bytes, value: bytes) -> bytes:
    return zlib.crc32(value, zlib.crc32(key)).to_bytes(CHECKSUM_BYTES, "little")


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
