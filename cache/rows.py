"""The rows of the response cache in SQLite: schema, look-up, insertion, order of use, eviction.

Each function is one step, or part of one, on a connection that the caller owns.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b

import aiosqlite

ROW_OVERHEAD_BYTES = 100  # of a row without its value: the key in table and index, two numbers, headers
# Rows are in order of last use: `id` is that time in µs, times 2048, plus a number of the process. Eviction takes rows
# from the front, so it needs no second index. REPLACE fires the delete trigger only with recursive_triggers on.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS response (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, stored_at REAL NOT NULL, sealed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS response_size (bytes INTEGER NOT NULL);
INSERT INTO response_size SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM response_size);
CREATE TRIGGER IF NOT EXISTS response_added AFTER INSERT ON response BEGIN
    UPDATE response_size SET bytes = bytes + length(NEW.sealed) + {ROW_OVERHEAD_BYTES}; END;
CREATE TRIGGER IF NOT EXISTS response_removed AFTER DELETE ON response BEGIN
    UPDATE response_size SET bytes = bytes - length(OLD.sealed) - {ROW_OVERHEAD_BYTES}; END;
"""
_PRAGMAS = ("page_size = 8192", "journal_mode = WAL", "synchronous = NORMAL", "recursive_triggers = ON")
# The oldest rows whose sizes add up to ?2 bytes, or all of the ?1 oldest rows if these are smaller.
_EVICT = f"""
WITH oldest AS (SELECT id, length(sealed) + {ROW_OVERHEAD_BYTES} AS bytes FROM response ORDER BY id LIMIT ?1),
     summed AS (SELECT id, sum(bytes) OVER (ORDER BY id) AS upto FROM oldest)
DELETE FROM response WHERE id <= coalesce(
    (SELECT min(id) FROM summed WHERE upto >= ?2), (SELECT max(id) FROM oldest))
"""
_CHECKSUM_BYTES = 8
_CHUNK_KEYS = 512  # most keys in one query

Row = tuple[int, bytes, float, bytes]  # id, key, stored_at in Unix seconds, value under its checksum


async def prepare_reader(db: aiosqlite.Connection) -> None:
    """Set up a connection that only looks up."""
    await db.execute_fetchall("PRAGMA query_only = ON")


async def prepare_writer(db: aiosqlite.Connection) -> None:
    """Set up a connection that writes; creates the tables."""
    for pragma in _PRAGMAS:
        await db.execute_fetchall(f"PRAGMA {pragma}")
    async with transaction(db):
        for statement in _statements(_SCHEMA):
            await db.execute_fetchall(statement)


@asynccontextmanager
async def transaction(db: aiosqlite.Connection) -> AsyncIterator[None]:
    """A write transaction. After an error the caller closes the connection, which rolls back."""
    await db.execute_fetchall("BEGIN IMMEDIATE")
    yield
    await db.execute_fetchall("COMMIT")


async def look_up(db: aiosqlite.Connection, keys: Sequence[bytes], fresh_after: float) -> dict[bytes, bytes]:
    """The values of those keys that are stored after `fresh_after` (Unix seconds) and intact."""
    found: dict[bytes, bytes] = {}
    for chunk in _chunks(keys):
        rows = await db.execute_fetchall(
            f"SELECT key, sealed FROM response WHERE stored_at > ? AND key IN ({','.join('?' * len(chunk))})",
            (fresh_after, *chunk),
        )
        asked = set(chunk)
        for key, sealed in rows:
            value = _unseal(key, sealed) if key in asked else None
            if value is not None:
                found[key] = value
    return found


async def insert(db: aiosqlite.Connection, rows: Iterable[Row]) -> None:
    """Store rows, in place of earlier ones with the same keys."""
    await db.executemany("INSERT OR REPLACE INTO response VALUES (?, ?, ?, ?)", rows)


async def move(db: aiosqlite.Connection, ids: Iterable[tuple[int, bytes]]) -> None:
    """Give rows new ids (id, key), which are their places in the order of use."""
    await db.executemany("UPDATE OR IGNORE response SET id = ? WHERE key = ?", ids)


async def evict(db: aiosqlite.Connection, excess_bytes: int, max_rows: int) -> None:
    """Delete the least recently used rows until `excess_bytes` are free, but at most `max_rows` of them."""
    await db.execute_fetchall(_EVICT, (max_rows, excess_bytes))


async def size_bytes(db: aiosqlite.Connection) -> int:
    """The size of all rows."""
    rows = list(await db.execute_fetchall("SELECT bytes FROM response_size"))
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise sqlite3.DatabaseError("the table response_size is damaged")
    return rows[0][0]


def seal(key: bytes, value: bytes) -> bytes:
    """A value under a checksum that also covers its key."""
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
