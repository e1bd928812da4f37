"""The commit stage: each partition's contiguous acknowledged prefix, regularly and before partitions are given up.

The commit's metadata names the records acknowledged beyond the prefix: the partition's next owner does not answer them
again. It also holds the owner's mark, which tells the next owner that this one died (`owner_marker.py`).
"""

import asyncio
from collections.abc import Collection, Mapping

import structlog

from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.partition_marks import PartitionMarks

_COMMIT_S = 0.5
_RETRY_S = 0.2  # of the last commit
LAST_COMMIT_S = 3.0  # a broker that is away must not delay the end any longer

log = structlog.get_logger("penstock.commits")


class Committer(PartitionMarks):
    """Commits what the offset tracker offers, one commit at a time."""

    def __init__(self, offsets: OffsetTracker, consumer: Consumer) -> None:
        super().__init__()
        consumer.serve(self)
        self._offsets = offsets
        self._consumer = consumer
        self._committing = asyncio.Lock()

    async def run(self) -> None:
        """Commit twice a second, until cancelled. Changes of markers are committed at once, beside it."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            await asyncio.shield(self._commit())  # cancelled in mid-commit, its offsets would be offered to no other

    async def commit_last(self) -> bool:
        """Commit what is finished now. Where `LAST_COMMIT_S` does not suffice, log it and return false."""
        try:
            await asyncio.wait_for(self._commit_at_last(), LAST_COMMIT_S)
        except TimeoutError:
            log.warning("last_commit_given_up", consequence="the latest requests will be answered again")
            return False
        return True

    async def _commit_at_last(self) -> None:
        while not await self._commit() and not self._consumer.was_overtaken:  # noqa: ASYNC110 — it asks the broker
            await asyncio.sleep(_RETRY_S)

    def _changed(self, sources: Collection[Source]) -> None:
        self._offsets.put_back(sources)

    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        return await asyncio.shield(self._commit())  # cancelled in mid-commit, its offsets would be offered to no other

    async def _commit(self) -> bool:
        async with self._committing:  # one at a time: an older offset must never overtake a newer one
            offsets = {source: self._with_mark(source, one) for source, one in self._offsets.take_committable().items()}
            if offsets and not await self._consumer.commit(offsets):
                self._offsets.put_back(offsets)
                return False
            return True

    def _with_mark(self, source: Source, progress: PartitionProgress) -> PartitionProgress:
        self.passed(source, progress.offset)
        return progress._replace(marker=self.mark_at(source, progress.offset))

    async def acquire(self, sources: set[Source]) -> set[Source]:
        """Nothing keeps an earlier owner from committing, but the group's generation."""
        return sources

    def acquired(self, sources: set[Source], committed: Mapping[Source, PartitionProgress]) -> None:
        """Go on where the last owners have committed."""
        self._offsets.restore(committed)
        self._take_over(committed)

    def skipped(self, source: Source, first: int, end: int) -> None:
        """Commit the new beginning, so that the next owner does not find the gap again."""
        if self._offsets.skip(source, first, end):
            self._changed([source])

    async def release(self, sources: set[Source]) -> None:
        """The worker has committed last, and forgotten the offsets."""
        self._forget_marks()
