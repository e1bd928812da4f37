"""Commits of what is finished: regularly, and once more before partitions are given up."""

import asyncio

import structlog

from penstock.worker.kafka.consumer import Consumer
from penstock.worker.kafka.offsets import OffsetTracker

_COMMIT_S = 0.5
LAST_COMMIT_S = 3.0  # a broker that is away must not hold the last one for ever

log = structlog.get_logger("penstock.commits")


class Commits:
    """Brings each partition's contiguous finished prefix to the broker."""

    def __init__(self, offsets: OffsetTracker, consumer: Consumer) -> None:
        self._offsets = offsets
        self._consumer = consumer
        self._committing = asyncio.Lock()

    async def regularly(self) -> None:
        """Commit twice a second, until cancelled."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            await asyncio.shield(self._commit())  # ended in mid-commit, the next one would not know of its offsets

    async def last(self) -> None:
        """Commit what is finished now, or say that it could not be done in `LAST_COMMIT_S`."""
        try:
            await asyncio.wait_for(self._commit(), LAST_COMMIT_S)
        except TimeoutError:
            log.warning("last_commit_given_up", consequence="what was answered last will be answered again")

    async def _commit(self) -> None:
        async with self._committing:  # one after another: an older offset must never overtake a newer one
            offsets = self._offsets.take_committable()
            if offsets and not await self._consumer.commit(offsets):
                self._offsets.put_back(offsets)
