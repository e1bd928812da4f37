"""Records of routes that wait for what they need from elsewhere, such as their schemas, beside the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.worker.enrichment.router import Router
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import watched

Begin = Callable[[Sequence[PendingRecord]], Awaitable[None]]


class UnpreparedRecords:
    """The polls go on meanwhile, so the worker stays in its group. `KeyOrder` keeps the order of keys."""

    def __init__(self, router: Router, begin: Begin) -> None:
        """`begin` takes records that are prepared."""
        self._router, self._begin = router, begin
        self._waiting: list[PendingRecord] = []
        self._current: list[PendingRecord] = []
        self._task: asyncio.Task[None] | None = None

    def hold_back(self, records: Sequence[PendingRecord]) -> Sequence[PendingRecord]:
        """Prepare those of these admitted records that are not ready. Returns the others."""
        if all(map(self._router.is_ready, records)):
            return records
        self._waiting += [record for record in records if not self._router.is_ready(record)]
        if self._task is None or self._task.done():
            self._task = watched(self._run())
        return [record for record in records if self._router.is_ready(record)]

    def take_back(self) -> list[PendingRecord]:
        """Drop the records that wait. Returns them."""
        dropped = [*self._current, *self._waiting]
        self._current, self._waiting = [], []
        return [record for record in dropped if record.is_unanswered]

    async def _run(self) -> None:
        while self._waiting:
            self._current, self._waiting = self._waiting, []
            await self._router.prepare(self._current)
            prepared, self._current = self._current, []
            if prepared:
                await self._begin(prepared)

    def close(self) -> None:
        """Wait for nothing more. The records are taken back before."""
        if self._task is not None:
            self._task.cancel()
