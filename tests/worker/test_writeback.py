"""Results on their way into the cache: all of them with a disk that keeps up, a bounded part with one that does not."""

import pytest

from penstock.cache import ResponseCache
from penstock.worker.replies import cache_writer as writeback
from penstock.worker.replies.cache_writer import WriteBack


async def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "_MOST_WAITING_BYTES", 1000)
    async with await ResponseCache.open(":memory:", max_bytes=1 << 20, ttl_s=60) as cache:
        behind = WriteBack(cache)
        for key in (b"first", b"second", b"too many"):  # all before a write can begin
            behind.put({key: bytes(600)})
        await behind.close()
        assert (await cache.get_many([b"first", b"second", b"too many"])).keys() == {b"first", b"second"}
        behind.put({b"too many": bytes(600)})  # what waited is written, so there is room
        await behind.close()
        assert await cache.get_many([b"too many"]) == {b"too many": bytes(600)}
