"""Results on their way into the cache: gathered while one write runs, so that no answer ever waits for the disk."""

import asyncio
from collections.abc import Mapping

from penstock.cache import ResponseCache

_MOST_WAITING_BYTES = 64 * 1024 * 1024  # a disk slower than the engine loses cache entries, never memory


class WriteBack:
    """One write at a time, behind the answers."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._waiting: dict[bytes, bytes] = {}
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    def put(self, items: Mapping[bytes, bytes]) -> None:
        """Keep these results, sometime soon. Called on the event loop."""
        if self._waiting_bytes < _MOST_WAITING_BYTES:
            self._waiting.update(items)
            self._waiting_bytes += sum(map(len, items.values()))
        if self._writer is None and self._waiting:
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._waiting:
            items, self._waiting, self._waiting_bytes = self._waiting, {}, 0
            await self._cache.put_many(items)
        self._writer = None
