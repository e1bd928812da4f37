"""Online records that take long to process, such as 4 MiB of text: one at a time, beside the others, which go on."""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

_MEMORY = 0.9  # weight of what was measured before the last record


class _Waiting(NamedTuple):
    """A record in the order in which records are processed."""

    turn: int  # bytes that were processed when it came, and its own
    number: int  # of its arrival
    record: PendingRecord


class LongRecords:
    """Long online records are processed one at a time, whatever waits.

    So a record that comes after them waits for the tokenizer for one part of one of them, 10 ms, however many wait.
    Small ones come first, but each lets others overtake it with no more bytes than its own.
    """

    def __init__(
        self,
        process: Callable[[Sequence[PendingRecord]], Coroutine[Any, Any, None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._clock = clock
        self._waiting: list[_Waiting] = []  # a heap
        self._current: PendingRecord | None = None
        self._running: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._num_bytes = 0  # processed
        self._recent_bytes = self._recent_s = 0.0  # of which the last records count most

    def wait_s(self, record: PendingRecord) -> float:
        """Predicted seconds until a record is processed that is added now."""
        turn = self._num_bytes + record.num_bytes
        ahead = sum([waiting.record.num_bytes for waiting in self._waiting if waiting.turn <= turn])
        if self._current is not None:
            ahead += self._current.num_bytes
        return ahead * self._recent_s / max(self._recent_bytes, 1.0)

    def add(self, record: PendingRecord) -> None:
        """Process an admitted record when its turn comes."""
        heappush(self._waiting, _Waiting(self._num_bytes + record.num_bytes, next(self._numbers), record))
        if self._running is None:
            self._running = watched(self._run())

    def take_back(self, *, begun: bool) -> list[PendingRecord]:
        """Drop the records that wait, and with `begun` the one that is processed. Returns those without an answer."""
        records = [waiting.record for waiting in self._waiting]
        self._waiting.clear()
        if begun and self._running is not None:
            self._running.cancel()
            self._running = None
            if self._current is not None:
                records.append(self._current)
            self._current = None
        return [record for record in records if record.is_unanswered]

    async def _run(self) -> None:
        while self._waiting:
            self._current, started = heappop(self._waiting).record, self._clock()
            num_bytes = self._current.num_bytes
            await self._process([self._current])
            self._current = None
            self._num_bytes += num_bytes
            self._recent_bytes = _MEMORY * self._recent_bytes + num_bytes
            self._recent_s = _MEMORY * self._recent_s + self._clock() - started
        self._running = None
