"""Faults of the response cache's file."""

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

from penstock.ops.chaos.not_injected import NotInjectedError
from penstock.ops.chaos.worker_command import WorkerCommand

_FULL_BYTES = 16_384  # no file grows beyond


class CacheFaults:
    """Each method injects and undoes one fault. It raises NotInjectedError or OSError if the fault did not happen."""

    def __init__(self, worker: WorkerCommand, path: Path, seconds: float) -> None:
        """`path`: of the cache's file. `seconds`: how long a fault lasts."""
        self._worker = worker
        self._path = path
        self._seconds = seconds

    async def disk_full(self, rng: random.Random) -> None:
        """No file of a member grows: writes to the response cache fail."""
        if not self._worker.limit_files(_FULL_BYTES):
            raise NotInjectedError("No member ran.")
        await asyncio.sleep(self._seconds)
        self._worker.limit_files(-1)

    async def cache_locked(self, rng: random.Random) -> None:
        """Another program holds the cache's file."""
        await asyncio.to_thread(_hold_lock, self._path, self._seconds)

    async def cache_damaged(self, rng: random.Random) -> None:
        """Bytes of the file change."""
        with self._path.open("r+b") as file:
            for _ in range(8):
                file.seek(rng.randrange(max(1, self._path.stat().st_size)))
                file.write(rng.randbytes(64))


def _hold_lock(path: Path, seconds: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.execute("ROLLBACK")
