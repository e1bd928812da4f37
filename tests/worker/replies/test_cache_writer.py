"""The cache writer keeps every result with a disk that keeps up, and a bounded part with one that does not."""

import pytest

from penstock.cache import ResponseCache
from penstock.worker.replies import cache_writer
from penstock.worker.replies.cache_writer import CacheWriter


async def test_the_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_writer, "_MAX_QUEUED_BYTES", 1000)
    async with await ResponseCache(":memory:", max_bytes=1 << 20, ttl_s=60).open() as cache:
        writer = CacheWriter(cache)
        for key in (b"first", b"second", b"too many"):  # all before a write can begin
            writer.put({key: bytes(600)})
        await writer.close()
        assert (await cache.get_many([b"first", b"second", b"too many"])).keys() == {b"first", b"second"}
        writer.put({b"too many": bytes(600)})  # the queue is written, so there is room
        await writer.close()
        assert await cache.get_many([b"too many"]) == {b"too many": bytes(600)}
