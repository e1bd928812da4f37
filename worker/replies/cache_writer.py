"""Writes results to the cache behind the replies, so that no reply waits for the disk."""

import asyncio
from collections.abc import Mapping

from penstock.cache import ResponseCache

_MAX_QUEUED_BYTES = 64 * 1024 * 1024  # a disk slower than the engine costs cache entries, never memory


class CacheWriter:
    """Runs one write at a time. Results that come meanwhile are gathered for the next."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._queued: dict[bytes, bytes] = {}
        self._queued_bytes = 0
        self._writing: asyncio.Task[None] | None = None

    def put(self, items: Mapping[bytes, bytes]) -> None:
        """Queue results by key. Called on the event loop."""
        if self._queued_bytes < _MAX_QUEUED_BYTES:
            self._queued.update(items)
            self._queued_bytes += sum(map(len, items.values()))
        if self._writing is None and self._queued:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is queued."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._queued:
            items, self._queued, self._queued_bytes = self._queued, {}, 0
            await self._cache.put_many(items)
        self._writing = None
