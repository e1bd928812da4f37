"""The look-up of results, and their writes behind the replies, so that no reply waits for the disk."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.cache import ResponseCache
from penstock.engine.types import Float32Array
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults

_MAX_QUEUED_BYTES = 64 * 1024 * 1024  # a disk slower than the engine costs cache entries, never memory
_ENTRY_BYTES = 150  # of a queued result, beside its value: two objects of CPython and their part of the dictionary
# Between two writes: a row of a large one costs half the processor time of a row of a small one. Other processes find a
# result by so much later, and a crash loses so much more.
_PAUSE_S = 0.1


class WriteBehindCache:
    """Runs one write at a time. Results that come meanwhile are gathered for the next, and are found until then."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._queued: dict[bytes, bytes] = {}
        self._queued_bytes = 0
        self._written: Mapping[bytes, bytes] = {}  # by the write that is running
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._looking: list[dict[bytes, bytes]] = []  # of each look-up under way, the results that have come meanwhile

    async def look_up(self, blocks: list[SequenceBlock]) -> tuple[SequenceResults, list[SequenceBlock]]:
        """Ask for all sequences in one query. Returns those that are stored, with their results, and the others."""
        found = await self.get_many([key for block in blocks if block.is_stored for key in block.keys])
        if not found:
            return [], blocks
        hits: list[tuple[SequenceBlock, list[Float32Array]]] = []
        misses: list[SequenceBlock] = []
        for block in blocks:
            stored = [place for place, key in enumerate(block.keys) if key in found]
            if stored:
                rows = [np.frombuffer(found[block.keys[place]], np.float32) for place in stored]
                hits.append((block.part(stored), rows))
                block.request.note_cached(len(stored))
            if rest := [place for place, key in enumerate(block.keys) if key not in found]:
                misses.append(block.part(rest))
        return hits, misses

    def store(self, results: SequenceResults) -> None:
        """Queue the results of a batch, but those that must not be kept."""
        stored = [(block.keys, rows) for block, rows in results if block.is_stored]
        self.put({key: row.tobytes() for keys, rows in stored for key, row in zip(keys, rows, strict=True)})

    async def get_many(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The results that are stored, or on their way there: a request never repeats a computation that has ended."""
        # A result may be stored after the file was read, and before the answer is here.
        unstored = {key: some[key] for some in (self._written, self._queued) if some for key in keys if key in some}
        come: dict[bytes, bytes] = {}
        self._looking.append(come)
        try:
            found = await self._cache.get_many(keys)
        finally:
            self._looking = [one for one in self._looking if one is not come]
        return found | unstored | {key: come[key] for key in keys if key in come}

    def put(self, items: Mapping[bytes, bytes]) -> None:
        """Queue results by key. Called on the event loop."""
        for come in self._looking:
            come.update(items)
        if self._queued_bytes < _MAX_QUEUED_BYTES:
            self._queued.update(items)
            self._queued_bytes += sum(map(len, items.values())) + _ENTRY_BYTES * len(items)
        if self._writing is None and self._queued:
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is queued, without a pause."""
        self._closing.set()
        if self._writing is not None:
            await self._writing
        self._closing.clear()

    async def _write(self) -> None:
        while self._queued:
            self._written, self._queued, self._queued_bytes = self._queued, {}, 0
            await self._cache.put_many(self._written)
            self._written = {}
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _PAUSE_S)
        self._writing = None
