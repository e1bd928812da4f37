"""A connection to a SQLite file that other processes use too, and that may fail, be removed and come back."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiosqlite
import structlog

from penstock.cache.private_files import check_regular, make_private_file

# Errors of sqlite3 for a damaged file, whose messages may quote bytes that are not text, and whose lengths may be huge.
FILE_ERRORS = (sqlite3.Error, OSError, UnicodeDecodeError, OverflowError, MemoryError)
MEMORY = ":memory:"  # a path: the database belongs to its connection
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # between attempts, while the file fails
_LOOK_EVERY_S = 1.0  # at the path, for another file than the one that is open
_LOCK_PAUSE_S = 0.01  # between attempts to lock the directory
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}  # primary codes of SQLite

log = structlog.get_logger("penstock.cache")

Step = Callable[[aiosqlite.Connection], Awaitable[None]]


class RetryingConnection:
    """Runs one step at a time. A failed step closes the connection; a later one opens it again, after a pause.

    A connection that only reads opens an existing file. One that writes makes the file, and follows its path: when the
    file was removed or replaced, it opens the new one, and so does its reader. It removes a file that it has prepared
    and that turns out to be damaged; one that it could never prepare may be of another program, and stays.

    SQLite finds the log of a file (-wal) and the index of that (-shm) by their names alone, so that two files of one
    name would share them. The order of opening and closing here keeps them apart: see `_connect` and `close`.

    One event loop owns it. It runs SQLite in a thread of its own.
    """

    def __init__(
        self,
        path: Path | str,
        prepare: Step | None = None,
        *,
        lock_s: float,
        report: Callable[[BaseException | None], None],
        reader: "RetryingConnection | None" = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """The connection is opened by the first step.

        Args:
            path: its directory must exist.
            prepare: runs on each new connection, before any step. None: the connection only reads.
            lock_s: longest wait for a lock of another process, in seconds, before a step fails.
            report: gets the error of each failed step, and None after each step that succeeds.
            reader: the connection of this process that reads what this one writes. It is closed with this one.
            monotonic: seconds on a clock that never steps back.
        """
        self._path = str(path)
        self._uri = f"{Path(path).absolute().as_uri()}?mode=ro" if prepare is None else None
        self._prepare = prepare
        self._lock_s = lock_s
        self._report = report
        self._reader = reader
        self._monotonic = monotonic
        self._db: aiosqlite.Connection | None = None
        self._file: tuple[int, int] | None = None  # the one that was opened last
        self._prepared: tuple[int, int] | None = None  # the one that was prepared last
        self._found_damage = False
        self._look_at = 0.0
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
                self._found_damage = _is_damage(error)
                if self._found_damage and self._prepared == self._file is not None:
                    await self._remove_file(repr(error))
                await self._disconnect()
                return False
            except BaseException:
                await self._disconnect()
                raise
            self._num_failures = 0
            self._report(None)
            return True

    async def close(self) -> None:
        """Close the connection and its reader, after the steps that are running. May be called twice.

        The last connection to a file removes its log and index. A reader is not allowed to, so it is closed first, but
        last if they are those of a new file by now.
        """
        async with self._lock:
            is_replaced = self._db is not None and await self._is_replaced()
            if is_replaced:
                await self._disconnect()
            if self._reader is not None:
                await self._reader.close()
            await self._disconnect()

    async def _connected(self) -> aiosqlite.Connection:
        now = self._monotonic()
        if self._db is not None and self._prepare is not None and now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            if self._reader is not None and self._reader._found_damage:
                await self._remove_file("found by a look-up")
            if await self._is_replaced():
                await self._disconnect()
        return self._db or await self._connect()

    async def _connect(self) -> aiosqlite.Connection:
        async with contextlib.AsyncExitStack() as stack:
            if self._reader is not None:  # its look-ups wait until the file is whole
                await stack.enter_async_context(self._reader._closed())
            if self._prepare is not None and self._path != MEMORY:
                await asyncio.to_thread(_make_new_file, self._path, self._lock_s, stack)
            name, is_uri = self._uri or self._path, self._uri is not None
            # Connected here first: aiosqlite's thread survives a failure to connect, and may outlive the event loop.
            await asyncio.to_thread(_try_to_connect, self._path, name, is_uri)
            db = self._db = await aiosqlite.connect(name, uri=is_uri, timeout=self._lock_s, isolation_level=None)
            self._file = await asyncio.to_thread(_identity, self._path)
            if self._prepare is not None:
                await self._prepare(db)
                self._prepared = self._file
        return db

    async def _remove_file(self, reason: str) -> None:
        """Remove the file that was opened last, unless the path has another one by now."""
        await self._disconnect()
        with contextlib.suppress(OSError):  # a directory that may not be written
            if self._file is not None and await asyncio.to_thread(_remove, self._path, self._file, self._lock_s):
                log.warning("cache_file_removed", path=self._path, reason=reason)

    async def _is_replaced(self) -> bool:
        """Whether the path has another file than the one that is open, or none."""
        try:
            return self._path != MEMORY and await asyncio.to_thread(_identity, self._path) != self._file
        except OSError:  # the path cannot be looked at: the next attempt to open it says why
            return True

    @contextlib.asynccontextmanager
    async def _closed(self) -> AsyncIterator[None]:
        """Close the connection, and let no step open it meanwhile."""
        async with self._lock:
            await self._disconnect()
            self._num_failures, self._found_damage = 0, False  # of a file that is gone, or that is tried again
            yield

    async def _disconnect(self) -> None:
        """Closing rolls an open transaction back."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(*FILE_ERRORS):  # the step's own error is the one that is reported
                await db.close()


def _try_to_connect(path: str, name: str, is_uri: bool) -> None:
    """Raises OSError and sqlite3.Error."""
    if path != MEMORY:
        check_regular(path)
    sqlite3.connect(name, uri=is_uri).close()


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_prepared(path: str) -> bool:
    """Whether there is a file, with SQLite's first page."""
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _is_damage(error: BaseException) -> bool:
    """Whether an error says that the content of the file is not what SQLite wrote."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGED or isinstance(error, UnicodeDecodeError | OverflowError)


def _remove(path: str, file: tuple[int, int], lock_s: float) -> bool:
    """Remove this file. Returns false if the path has another one, which another process has made."""
    with contextlib.ExitStack() as stack:
        _lock_directory(path, lock_s, stack)
        if _identity(path) != file:
            return False
        os.unlink(path)
        return True


def _lock_directory(path: str, lock_s: float, stack: contextlib.ExitStack | contextlib.AsyncExitStack) -> None:
    """Lock the directory of a file until `stack` ends, against other processes that make or remove the file.

    Members of a fleet hold it for some milliseconds each. Anybody who may read the directory may hold it.
    Raises OSError if it is not given back within `lock_s`.
    """
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    stack.callback(os.close, directory)
    for _ in range(1 + int(lock_s / _LOCK_PAUSE_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_S)
    raise OSError("another program has locked the directory of the file")


def _make_new_file(path: str, lock_s: float, stack: contextlib.AsyncExitStack) -> None:
    """If there is no file, make one in place of what is left of an earlier one. Locks the directory until `stack` ends.

    Processes that still have the removed file open would share its index with the new one. An empty file is one that
    another process is preparing: SQLite waits for no lock when two connections give a file its log at the same time.
    """
    check_regular(path)
    if _is_prepared(path):
        return
    _lock_directory(path, lock_s, stack)
    if _identity(path) is None:
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
        make_private_file(path)
