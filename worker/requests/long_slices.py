"""Processing of slices that take long, such as 4 MiB of text in one record: beside the others, which go on."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from penstock.worker.requests.record import PendingRecord, RecordState
from penstock.worker.stop_signal import watched

_LONG_BYTES = 64 * 1024  # of text, some 10 ms in the tokenizer; a larger record is a slice of its own
_MEMORY = 0.9  # weight of what was measured before the last slice
_UNANSWERED = (RecordState.ADMITTED, RecordState.QUEUED)

Slice = Sequence[PendingRecord]
Process = Callable[[Slice], Coroutine[Any, Any, None]]


class _QueuedSlice(NamedTuple):
    """A slice in the order in which slices are processed."""

    turn: int  # bytes that were processed when it came, and its own
    number: int  # of its arrival
    records: Slice


class LongSlices:
    """Called with one online slice after another, and with bulk slices from a task of their own.

    Long online slices are processed one at a time. So a slice that comes after them waits for the tokenizer for one
    part of one of them, 10 ms, however many wait. Small ones come first, but each lets others overtake it with no more
    bytes than its own.

    A slice that is predicted to wait beyond its deadline is rejected when it comes.
    """

    def __init__(
        self, process: Process, reject_late: Callable[[Slice, float], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`reject_late`: rejects a slice if its deadline is nearer than so many seconds. Returns whether it is."""
        self._process = process
        self._reject_late = reject_late
        self._clock = clock
        self._waiting: list[_QueuedSlice] = []  # a heap
        self._current: Slice = ()
        self._running: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._num_bytes = 0  # processed
        self._recent_bytes = self._recent_s = 0.0  # of which the last slices count most

    async def __call__(self, records: Slice) -> None:
        """Process a slice. Returns at once for a long one."""
        if not records or records[0].from_bulk_topic or records[0].num_bytes <= _LONG_BYTES:
            await self._process(records)
            return
        waiting = _QueuedSlice(self._num_bytes + _num_bytes(records), next(self._numbers), records)
        if self._reject_late(records, self._wait_s(waiting)):
            return
        heappush(self._waiting, waiting)
        if self._running is None:
            self._running = watched(self._run())

    def take_back(self, *, begun: bool) -> list[PendingRecord]:
        """Drop the slices that wait, and with `begun` the one that is processed. Returns their unanswered records."""
        slices = [waiting.records for waiting in self._waiting]
        self._waiting.clear()
        if begun and self._running is not None:
            self._running.cancel()
            self._running = None
            slices.append(self._current)
            self._current = ()
        return [record for records in slices for record in records if record.state in _UNANSWERED]

    def _wait_s(self, own: _QueuedSlice) -> float:
        """Predicted seconds until a slice is processed."""
        ahead = [self._current, *[waiting.records for waiting in self._waiting if waiting < own]]
        return sum(map(_num_bytes, ahead)) * self._recent_s / max(self._recent_bytes, 1.0)

    async def _run(self) -> None:
        while self._waiting:
            self._current, started = heappop(self._waiting).records, self._clock()
            await self._process(self._current)
            num_bytes = _num_bytes(self._current)
            self._num_bytes += num_bytes
            self._recent_bytes = _MEMORY * self._recent_bytes + num_bytes
            self._recent_s = _MEMORY * self._recent_s + self._clock() - started
            self._current = ()
        self._running = None


def _num_bytes(records: Slice) -> int:
    return sum([record.num_bytes for record in records])
