"""Faults of the response cache's file."""

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

from penstock.ops.chaos.faults.scene import CACHE, Effect, NotInjectedError, Scene

_FULL_BYTES = 16_384  # no file grows beyond
_FAILED = "cache_unavailable"  # the worker's event


async def disk_full(scene: Scene, rng: random.Random) -> Effect:
    """No file of a member grows: writes to the response cache fail."""
    before = scene.worker.num_events(_FAILED)
    num_limited = scene.worker.limit_files(_FULL_BYTES)
    if not num_limited:
        raise NotInjectedError("No member ran.")
    await asyncio.sleep(scene.outage_s / 2)
    scene.worker.limit_files(-1)
    num_failures = scene.worker.num_events(_FAILED) - before
    if not num_failures:
        raise NotInjectedError("No member wrote into the cache.")
    return {"members_limited": num_limited, _FAILED: num_failures}


async def cache_locked(scene: Scene, rng: random.Random) -> Effect:
    """Another program holds the cache's file."""
    before, began = scene.worker.num_events(_FAILED), time.monotonic()
    await asyncio.to_thread(_hold_lock, scene.folder / CACHE, scene.outage_s / 2)
    return {"held_s": round(time.monotonic() - began, 1), _FAILED: scene.worker.num_events(_FAILED) - before}


async def cache_damaged(scene: Scene, rng: random.Random) -> Effect:
    """Bytes of the file change."""
    before = scene.worker.num_events(_FAILED)
    num_changed = await asyncio.to_thread(_damage, scene.folder / CACHE, rng)
    if not num_changed:
        raise NotInjectedError("The cache's file was empty.")
    return {"bytes_changed": num_changed, _FAILED: scene.worker.num_events(_FAILED) - before}


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
