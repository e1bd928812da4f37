"""Processing of slices that take long, such as 4 MiB of text in one record: beside the others, which go on."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

_LONG_BYTES = 256 * 1024  # of text, some 40 ms in the tokenizer
_MOST = 4

Process = Callable[[Sequence[PendingRecord]], Coroutine[Any, Any, None]]


class LongSlices:
    """Called with one online slice after another, and with bulk slices from a task of their own.

    Long online slices take turns in the tokenizer with what comes after them. If `_MOST` are being processed, a further
    one waits, and all that comes after it.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, records: Sequence[PendingRecord]) -> None:
        """Process a slice. Returns at once for a long one."""
        if not records or records[0].bulk_topic or sum([record.num_bytes for record in records]) < _LONG_BYTES:
            await self._process(records)
            return
        while len(self._tasks) >= _MOST:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = watched(self._process(records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
