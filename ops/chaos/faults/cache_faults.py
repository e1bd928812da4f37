"""Faults of the response cache's file."""

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

from penstock.ops.chaos.faults.not_injected import Effect, NotInjectedError
from penstock.ops.chaos.fleet.worker_command import WorkerCommand

_FULL_BYTES = 16_384  # no file grows beyond
_FAILED = "cache_unavailable"  # the worker's event


class CacheFaults:
    """Each method injects and undoes one fault, and returns what it did.

    It raises NotInjectedError, OSError or sqlite3.Error if the fault did not happen.
    """

    def __init__(self, worker: WorkerCommand, path: Path, seconds: float) -> None:
        """`path`: of the cache's file. `seconds`: how long a fault lasts."""
        self._worker = worker
        self._path = path
        self._seconds = seconds

    async def disk_full(self, rng: random.Random) -> Effect:
        """No file of a member grows: writes to the response cache fail."""
        num_failures = self._num_failures()
        num_limited = self._worker.limit_files(_FULL_BYTES)
        if not num_limited:
            raise NotInjectedError("No member ran.")
        await asyncio.sleep(self._seconds)
        self._worker.limit_files(-1)
        num_failures = self._num_failures() - num_failures
        if not num_failures:
            raise NotInjectedError("No member wrote into the cache.")
        return {"members_limited": num_limited, _FAILED: num_failures}

    async def cache_locked(self, rng: random.Random) -> Effect:
        """Another program holds the cache's file."""
        num_failures, began = self._num_failures(), time.monotonic()
        await asyncio.to_thread(_hold_lock, self._path, self._seconds)
        return {"held_s": round(time.monotonic() - began, 1), _FAILED: self._num_failures() - num_failures}

    async def cache_damaged(self, rng: random.Random) -> Effect:
        """Bytes of the file change."""
        num_failures = self._num_failures()
        num_changed = await asyncio.to_thread(_damage, self._path, rng)
        if not num_changed:
            raise NotInjectedError("The cache's file was empty.")
        return {"bytes_changed": num_changed, _FAILED: self._num_failures() - num_failures}

    def _num_failures(self) -> int:
        return self._worker.num_events(_FAILED)


def _damage(path: Path, rng: random.Random) -> int:
    num_changed = 0
    with path.open("r+b") as file:
        size = path.stat().st_size
        for _ in range(8 if size else 0):
            at, garbage = rng.randrange(size), rng.randbytes(64)
            file.seek(at)
            num_changed += sum(a != b for a, b in zip(file.read(len(garbage)), garbage, strict=False))
            file.seek(at)
            file.write(garbage)
    return num_changed


def _hold_lock(path: Path, seconds: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.execute("ROLLBACK")
