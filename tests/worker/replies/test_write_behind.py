"""The write-behind cache keeps every result with a disk that keeps up, and a bounded part with one that does not."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from penstock.cache import ResponseCache
from penstock.worker.replies import write_behind
from penstock.worker.replies.write_behind import WriteBehindCache


async def test_the_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_MAX_QUEUED_BYTES", 1000)
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60).open() as cache:
        writer = WriteBehindCache(cache)
        for key in (b"first", b"second", b"too many"):  # all before a write can begin
            writer.put({key: bytes(600)})
        await writer.close()
        assert (await cache.get_many([b"first", b"second", b"too many"])).keys() == {b"first", b"second"}
        writer.put({b"too many": bytes(600)})  # the queue is written, so there is room
        await writer.close()
        assert await cache.get_many([b"too many"]) == {b"too many": bytes(600)}


async def test_results_are_found_before_they_are_written_and_while_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    async with await ResponseCache(path, max_bytes=1 << 20, ttl_s=60, lock_s=30.0, look_up_s=30.0).open() as cache:
        writer = WriteBehindCache(cache)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # no write ends meanwhile
            writer.put({b"being written": b"1"})
            await asyncio.sleep(0)
            writer.put({b"queued": b"2"})
            keys = [b"being written", b"queued", b"unknown"]
            assert await writer.get_many(keys) == {b"being written": b"1", b"queued": b"2"}
            other.execute("ROLLBACK")
        await writer.close()
        assert await writer.get_many(keys) == {b"being written": b"1", b"queued": b"2"}
