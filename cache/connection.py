"""A connection to a SQLite file that other processes use too, and that may fail and come back."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiosqlite

# Errors of sqlite3 for a damaged file, whose messages may quote bytes that are not text, and whose lengths may be huge.
FILE_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # between attempts, while the file fails

Step = Callable[[aiosqlite.Connection], Awaitable[None]]


class RetryingConnection:
    """Runs one step at a time. A failed step closes the connection; a later one opens it again, after a pause.

    One event loop owns it. It runs SQLite in a thread of its own.
    """

    def __init__(
        self,
        path: Path | str,
        prepare: Step,
        *,
        lock_s: float,
        report: Callable[[BaseException | None], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """The connection is opened by the first step.

        Args:
            path: the file; SQLite creates it. Its directory must exist.
            prepare: runs on each new connection, before any step.
            lock_s: longest wait for the lock of another process, in seconds, before a step fails.
            report: gets the error of each failed step, and None after each step that succeeds.
            monotonic: seconds on a clock that never steps back.
        """
        self._path = str(path)
        self._prepare = prepare
        self._lock_s = lock_s
        self._report = report
        self._monotonic = monotonic
        self._db: aiosqlite.Connection | None = None
        self._is_stale = False
        self._lock = asyncio.Lock()
        self._num_failures = 0  # in a row
        self._retry_at = 0.0

    async def run(self, step: Step) -> bool:
        """Run a step, after those before it. Returns False if it failed, or was not tried because of the pause.

        A step that fails or is cancelled is rolled back if it had opened a transaction.
        """
        async with self._lock:
            if self._num_failures and self._monotonic() < self._retry_at:
                return False
            try:
                db = await self._connected()
                await step(db)
            except FILE_ERRORS as error:
                self._retry_at = self._monotonic() + _PAUSES_S[min(self._num_failures, len(_PAUSES_S) - 1)]
                self._num_failures += 1
                self._report(error)
                await self._disconnect()
                return False
            except BaseException:
                await self._disconnect()
                raise
            self._num_failures = 0
            self._report(None)
            return True

    def renew(self) -> None:
        """Open the file again for the next step."""
        self._is_stale = True

    async def close(self) -> None:
        """Close the connection, after the step that is running. May be called twice."""
        async with self._lock:
            await self._disconnect()

    async def _connected(self) -> aiosqlite.Connection:
        if self._is_stale:
            await self._disconnect()
        if self._db is None:
            # Connected here first: aiosqlite's thread survives a failure to connect, and may outlive the event loop.
            await asyncio.to_thread(lambda: sqlite3.connect(self._path).close())
            self._db = await aiosqlite.connect(self._path, timeout=self._lock_s, isolation_level=None)
            await self._prepare(self._db)
        return self._db

    async def _disconnect(self) -> None:
        """Closing rolls an open transaction back."""
        db, self._db, self._is_stale = self._db, None, False
        if db is not None:
            with contextlib.suppress(*FILE_ERRORS):  # the step's own error is the one that is reported
                await db.close()
