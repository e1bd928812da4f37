"""The marks that the partitions of this worker are to have. How they are committed is up to the delivery."""

from abc import abstractmethod
from collections.abc import Collection, Mapping

from penstock.worker.kafka.custody import Custody, Marks
from penstock.worker.kafka.offsets import Progress, Source

_CLEAN = Custody()


class PartitionMarks(Marks):
    """Bookkeeping. A subclass commits what `mark_at` says, with every offset, and when `_changed` is called."""

    def __init__(self) -> None:
        self._custody: dict[Source, Custody] = {}  # also of partitions whose last owner died and that have no mark yet
        self._marked: set[Source] = set()

    @property
    def has_doubts(self) -> bool:
        return bool(self._custody)

    def is_marked(self, source: Source) -> bool:
        return source in self._marked

    def custody(self, source: Source) -> Custody:
        return self._custody.get(source, _CLEAN)

    async def mark(self, marks: Mapping[Source, Custody]) -> bool:
        self._custody |= {source: custody for source, custody in marks.items() if custody != _CLEAN}
        added = marks.keys() - self._marked
        self._marked |= added
        self._changed(marks)
        is_committed = await self._commit_marks(marks) and self._marked.issuperset(marks)
        if not is_committed:
            self._marked -= added
        return is_committed

    def unname(self, sources: Collection[Source]) -> None:
        for source in sources:
            if source in self._custody:
                self._custody[source] = self._custody[source]._replace(running=(0, 0), alone=False)
        self._changed(sources)

    def hand_over(self) -> None:
        marked, self._marked = self._marked, set()
        self._custody.clear()
        self._changed(marked)

    def mark_at(self, source: Source, offset: int) -> Custody | None:
        """The mark that belongs into a commit of this offset."""
        if source not in self._marked:
            return None
        custody = self.custody(source)
        return custody if custody.is_in_doubt(offset) else _CLEAN

    def passed(self, source: Source, offset: int) -> None:
        """Drop a partition's mark once all records that it holds in doubt are before this offset, and so answered."""
        if source in self._custody and not self._custody[source].is_in_doubt(offset):
            del self._custody[source]

    def _take_over(self, committed: Mapping[Source, Progress]) -> None:
        """Take over the marks of owners that died, of partitions that were assigned."""
        doubts = {source: (one.custody, one.offset) for source, one in committed.items()}
        self._custody |= {source: found for source, (found, offset) in doubts.items() if found and found.until > offset}

    def _forget_marks(self) -> None:
        """Forget all marks: a rebalance revokes all partitions."""
        self._custody.clear()
        self._marked.clear()

    @abstractmethod
    def _changed(self, sources: Collection[Source]) -> None:
        """Commit the marks of these partitions soon, as they have changed."""

    @abstractmethod
    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        """Commit the marks of these partitions now. False if that failed, or the partitions are lost."""
