"""Results on their way into the cache: gathered while one write runs, so that no answer ever waits for the disk."""

import asyncio
from collections.abc import Mapping

from penstock.cache import ResponseCache

_MOST_WAITING = 50_000  # a disk slower than the engine loses cache entries, never memory


class WriteBack:
    """One write at a time, behind the answers."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._waiting: dict[bytes, bytes] = {}
        self._writer: asyncio.Task[None] | None = None

    def put(self, items: Mapping[bytes, bytes]) -> None:
        """Keep these results, sometime soon. Called on the event loop."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.update(items)
        if self._writer is None and self._waiting:
            self._writer = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._waiting:
            items, self._waiting = self._waiting, {}
            await self._cache.put_many(items)
        self._writer = None
