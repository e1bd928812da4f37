"""The response cache: one SQLite file, with batched look-ups before scheduling and batched writes after.

A failure of the cache must not make an answer wrong, lose it, or hold it up. Every value is stored with a checksum that
also covers its key. While the file fails, look-ups find nothing and writes do nothing.
"""

import asyncio
import functools
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiosqlite
import structlog

from penstock.cache.retrying_connection import MEMORY, RetryingConnection
from penstock.cache.rows import (
    CHECKSUM_BYTES,
    ROW_OVERHEAD_BYTES,
    evict,
    insert,
    look_up,
    move,
    prepare_writer,
    seal,
    size_and_last_id,
    transaction,
)

LOOK_UP_S = 0.25  # a look-up that takes longer finds nothing: computing is better than waiting for a slow disk
LOCK_S = 1.0  # the writes of other processes take milliseconds; the end of a worker waits for this one
_LOW_WATER = 0.95  # share of max_bytes that eviction leaves, so that it is rare
_EVICTED_ROWS = 256  # and two for each row written: a write stays short however large the file is
_PROCESS_BITS = 11  # of an id: two processes may use rows in the same µs
_MAX_USED = 2048  # uses remembered; writing more would hold the write lock for long

log = structlog.get_logger("penstock.cache")


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was opened, and its size."""

    hits: int  # keys
    misses: int  # keys
    bytes: int  # size of all rows at the last write, with expired ones
    works: bool  # False while look-ups or writes fail, and after `close`


class ResponseCache:
    """Answers by key, bounded by bytes and age. One event loop owns it; processes may share its file.

    Least recently used rows are evicted first, a bounded number with each write, so a file above its bound shrinks
    write by write. Reads do not write: uses are kept in memory until a write that evicts or finds many of them. Reads
    alone drop the oldest uses, a crash drops all.

    Look-ups have a connection of their own, so they never wait for a write. No method raises for an error of the file
    or the disk: `cache_unavailable` is logged once, the file is tried again after pauses of 1 to 64 s, and
    `cache_recovered` is logged when it works.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        max_bytes: int,
        ttl_s: float,
        look_up_s: float = LOOK_UP_S,
        lock_s: float = LOCK_S,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """A path of ":memory:" makes a cache that ends with the process.

        Args:
            path: its directory must exist.
            max_bytes: bound on the size of all rows, which is about the size of the file.
            ttl_s: age in seconds at which an answer expires.
            look_up_s: longest time that a look-up may take, in seconds.
            lock_s: longest wait for another process's write, in seconds, before the file counts as failing.
            clock: Unix time in seconds.
            monotonic: seconds on a clock that never steps back, for the pauses after failures.
        """
        self._path = str(path)
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._look_up_s = look_up_s
        self._clock = clock
        self._failing: set[str] = set()
        self._closed = False
        self._hits = self._misses = self._bytes = 0
        self._used: OrderedDict[bytes, int] = OrderedDict()  # key -> id it moves to
        self._last_us = 0
        self._process = random.getrandbits(_PROCESS_BITS)
        self._look_ups: set[asyncio.Task[bool]] = set()
        self._is_slow = False  # a look-up took longer than `look_up_s`, and is not done
        connection = functools.partial(RetryingConnection, self._path, lock_s=lock_s, monotonic=monotonic)
        reader = None
        if self._path != MEMORY:
            reader = connection(report=functools.partial(self._report, "look up"))
        self._writer = connection(prepare_writer, report=functools.partial(self._report, "write"), reader=reader)
        self._reader = reader or self._writer

    async def open(self) -> Self:
        """Open or create the file. Called once, first. What takes longer than a look-up may, goes on meanwhile."""
        opening = asyncio.create_task(self._writer.run(self._read_totals))
        self._look_ups.add(opening)
        opening.add_done_callback(self._look_up_done)
        try:
            done, _ = await asyncio.wait([opening], timeout=self._look_up_s)
            for one in done:
                one.result()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    @property
    def stats(self) -> CacheStats:
        """Counts since `open`."""
        return CacheStats(self._hits, self._misses, self._bytes, not self._failing and not self._closed)

    async def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are stored, intact and not expired. Called once a batch of records.

        Finds nothing after `look_up_s`, or while an earlier look-up has taken longer than that.
        """
        wanted = list(dict.fromkeys(keys))
        found: dict[bytes, bytes] = {}
        if wanted and not self._closed and not self._is_slow:
            found = await self._get_in_time(wanted)
            self._remember(found)
        self._hits += len(found)
        self._misses += len(wanted) - len(found)
        return found

    async def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Store values under their keys in one transaction, then evict. Called after each engine batch.

        A value that is larger than the whole cache is not stored.
        """
        most_bytes = self._max_bytes - ROW_OVERHEAD_BYTES - CHECKSUM_BYTES
        kept = {key: value for key, value in items.items() if len(value) <= most_bytes}
        if kept and not self._closed:
            await self._writer.run(functools.partial(self._put, kept))

    async def close(self) -> None:
        """Write the remembered uses and close the file. May be called twice."""
        if not self._closed and self._used:
            await self._writer.run(self._write_used)
        self._closed = True
        await asyncio.gather(*self._look_ups, return_exceptions=True)
        await self._writer.close()

    def _report(self, operation: str, error: BaseException | None) -> None:
        """Log the begin and the end of a time in which look-ups or writes fail."""
        was_failing = bool(self._failing)
        if error is None:
            self._failing.discard(operation)
            if was_failing and not self._failing:
                log.info("cache_recovered", path=self._path)
            return
        self._failing.add(operation)
        if not was_failing:
            reason = f"{type(error).__name__}: {error}"
            log.warning("cache_unavailable", operation=operation, reason=reason, path=self._path)

    async def _get_in_time(self, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}

        async def get(db: aiosqlite.Connection) -> None:
            found.update(await look_up(db, wanted, self._clock(), self._ttl_s))

        task = asyncio.create_task(self._reader.run(get))
        self._look_ups.add(task)
        task.add_done_callback(self._look_up_done)
        done, _ = await asyncio.wait([task], timeout=self._look_up_s)
        self._is_slow = self._is_slow or not done
        return dict(found)

    def _look_up_done(self, task: asyncio.Task[bool]) -> None:
        self._look_ups.discard(task)
        if not self._look_ups:
            self._is_slow = False

    def _remember(self, keys: Iterable[bytes]) -> None:
        """These were used now: the last of `_used`, which is in order of use."""
        used = self._used
        for key in keys:
            used[key] = self._next_id()
            used.move_to_end(key)
        for _ in range(len(used) - _MAX_USED):
            used.popitem(last=False)

    async def _read_totals(self, db: aiosqlite.Connection) -> None:
        """Read the size, and go on behind the last use by any process, whose clock may have been ahead."""
        self._bytes, last_id = await size_and_last_id(db)
        self._last_us = max(self._last_us, last_id >> _PROCESS_BITS)

    async def _put(self, items: Mapping[bytes, bytes], db: aiosqlite.Connection) -> None:
        now = self._clock()
        async with transaction(db):
            await insert(db, [(self._next_id(), key, now, seal(key, value)) for key, value in items.items()])
            for key in items:
                self._used.pop(key, None)
            await self._read_totals(db)
            excess_bytes = self._bytes - int(self._max_bytes * _LOW_WATER)
            if self._bytes > self._max_bytes or len(self._used) >= _MAX_USED:
                await self._move_used(db)
            if self._bytes > self._max_bytes:
                await evict(db, excess_bytes, max_rows=_EVICTED_ROWS + 2 * len(items))
                await self._read_totals(db)

    async def _write_used(self, db: aiosqlite.Connection) -> None:
        async with transaction(db):
            await self._move_used(db)

    async def _move_used(self, db: aiosqlite.Connection) -> None:
        """Move the rows that were read since the last call to their places in the order of use."""
        used, self._used = self._used, OrderedDict()
        await move(db, [(place, key) for key, place in used.items()])

    def _next_id(self) -> int:
        """An id for a row used now, above all earlier ids of this process even if the clock steps back."""
        self._last_us = max(self._last_us + 1, int(self._clock() * 1e6))
        return self._last_us << _PROCESS_BITS | self._process
