"""The commit stage: each partition's contiguous acknowledged prefix, regularly and before partitions are given up.

What is acknowledged beyond the prefix travels in the commit's metadata: the partition's next owner answers it no more.
So does the owner's mark, by which the next one knows that this one died (`custody.py`).
"""

import asyncio
from collections.abc import Collection, Mapping

import structlog

from penstock.worker.kafka.consumer import Consumer
from penstock.worker.kafka.custody import Custody, Marks
from penstock.worker.kafka.offsets import OffsetTracker, Progress, Source

_COMMIT_S = 0.5
LAST_COMMIT_S = 3.0  # a broker that is away must not delay the end any longer

_CLEAN = Custody()

log = structlog.get_logger("penstock.commits")


class Committer(Marks):
    """Commits what the offset tracker offers, one commit at a time."""

    def __init__(self, offsets: OffsetTracker, consumer: Consumer) -> None:
        consumer.owner = self
        self._offsets = offsets
        self._consumer = consumer
        self._committing = asyncio.Lock()
        self._custody: dict[Source, Custody] = {}  # also of partitions whose last owner died and that have no mark yet
        self._marked: set[Source] = set()

    async def run(self) -> None:
        """Commit twice a second, until cancelled."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            await asyncio.shield(self._commit())  # cancelled in mid-commit, its offsets would be offered to no other

    async def commit_last(self) -> None:
        """Commit what is finished now, or log that `LAST_COMMIT_S` did not suffice."""
        try:
            await asyncio.wait_for(self._commit(), LAST_COMMIT_S)
        except TimeoutError:
            log.warning("last_commit_given_up", consequence="the latest requests will be answered again")

    def hand_over(self) -> None:
        self._offsets.put_back(self._marked)
        self._marked.clear()
        self._custody.clear()

    def is_marked(self, source: Source) -> bool:
        return source in self._marked

    def custody(self, source: Source) -> Custody:
        return self._custody.get(source, _CLEAN)

    @property
    def has_doubts(self) -> bool:
        return bool(self._custody)

    async def mark(self, marks: Mapping[Source, Custody]) -> bool:
        self._custody |= {source: custody for source, custody in marks.items() if custody != _CLEAN}
        added = marks.keys() - self._marked
        self._marked |= added
        self._offsets.put_back(marks)
        is_committed = await self._commit()
        if not is_committed:
            self._marked -= added
        return is_committed

    def unname(self, sources: Collection[Source]) -> None:
        for source in sources:
            if source in self._custody:
                self._custody[source] = self._custody[source]._replace(running=(0, 0), alone=False)
        self._offsets.put_back(sources)

    async def _commit(self) -> bool:
        async with self._committing:  # one at a time: an older offset must never overtake a newer one
            offsets = {source: self._with_mark(source, one) for source, one in self._offsets.take_committable().items()}
            if offsets and not await self._consumer.commit(offsets):
                self._offsets.put_back(offsets)
                return False
            return True

    def _with_mark(self, source: Source, progress: Progress) -> Progress:
        custody = self._custody.get(source)
        if custody is not None and progress.offset >= custody.until:  # no record is in doubt any longer
            custody = None
            del self._custody[source]
        return progress._replace(custody=(custody or _CLEAN) if source in self._marked else None)

    async def acquire(self, sources: set[Source]) -> None:
        """Nothing keeps an earlier owner from committing, but the group's generation."""

    def acquired(self, committed: Mapping[Source, Progress]) -> None:
        """Go on where the last owners have committed."""
        self._offsets.restore(committed)
        doubts = {source: (one.custody, one.offset) for source, one in committed.items()}
        self._custody = {source: found for source, (found, offset) in doubts.items() if found and found.until > offset}
        self._marked.clear()

    async def release(self, sources: set[Source]) -> None:
        """The worker has committed last, and forgotten the offsets."""
        self._custody.clear()  # a rebalance revokes all partitions
        self._marked.clear()
