"""Records of routes that wait for what they need from elsewhere, such as their schemas, beside the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.worker.enrichment.router import Router
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

Begin = Callable[[Sequence[PendingRecord]], Awaitable[None]]


class UnpreparedRecords:
    """The polls go on meanwhile, so the worker stays in its group. `KeyOrder` keeps the order of keys.

    What waits is not run, and nothing else waits for it: records behind one of their key, which could not leave before
    it, wait here too.
    """

    def __init__(self, router: Router, wait: Callable[[], Awaitable[None]], begin: Begin) -> None:
        """`wait` ends when records may begin, as none runs alone. `begin` takes records that are prepared."""
        self._router, self._wait, self._begin = router, wait, begin
        self._waiting: list[PendingRecord] = []
        self._current: list[PendingRecord] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def num(self) -> int:
        """Number of records that wait."""
        return len(self._current) + len(self._waiting)

    def hold_back(self, records: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
        """Prepare those of these admitted records that are not ready. Returns those that need not wait."""
        if not self.num and all(map(self._router.is_ready, records)):
            return records
        keys = {_key(record) for record in (*self._current, *self._waiting)}
        ready: list[PendingRecord] = []
        for record in records:
            if self._router.is_ready(record) and (record.original.key is None or _key(record) not in keys):
                ready.append(record)
            else:
                self._waiting.append(record)
                keys.add(_key(record))
        if self._waiting and (self._task is None or self._task.done()):
            self._task = watched(self._run())
        return ready

    def take_back(self) -> list[PendingRecord]:
        """Drop the records that wait. Returns them."""
        dropped = [*self._current, *self._waiting]
        self._current, self._waiting = [], []
        return [record for record in dropped if record.is_unanswered]

    async def _run(self) -> None:
        while self._waiting:
            self._current, self._waiting = self._waiting, []
            await self._router.prepare(self._current)
            await self._wait()
            prepared, self._current = self._current, []
            if prepared:
                await self._begin(prepared)

    def close(self) -> None:
        """Wait for nothing more. The records are taken back before."""
        if self._task is not None:
            self._task.cancel()


def _key(record: PendingRecord) -> tuple[Source, bytes | None]:
    return record.source, record.original.key
