"""The marks that the partitions of this worker are to have. How they are committed is up to the delivery."""

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Mapping

from penstock.worker.kafka.progress.custody import Custody, Marks
from penstock.worker.kafka.progress.offsets import PartitionProgress, Source

_CLEAN = Custody()
_NUM_REMEMBERED = 16  # marks of a partition that name doubts: of several commits on their way, any may be the last one


class PartitionMarks(Marks):
    """Bookkeeping. A subclass commits what `mark_at` says, with every offset, and when `_changed` is called."""

    def __init__(self) -> None:
        self._custody: dict[Source, Custody] = {}  # also of partitions whose last owner died and that have no mark yet
        self._marked: set[Source] = set()
        self._given: dict[Source, deque[Custody]] = {}  # marks with doubts, for commits; also of lost partitions

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
        if not custody.is_in_doubt(offset):
            return _CLEAN
        given = self._given.setdefault(source, deque(maxlen=_NUM_REMEMBERED))
        if custody not in given:
            given.append(custody)
        return custody

    def own_mark(self, source: Source, found: Custody) -> Custody | None:
        """The mark with which a partition goes on if this process has committed the one that was found; else None.

        It has lost the partition without handing it over, as a producer that was fenced does, and has not died. Every
        owner that dies raises the count, so no other process commits an equal mark for the same records.
        """
        return next((one.resumed() for one in self._given.get(source, ()) if one.text() == found.text()), None)

    def passed(self, source: Source, offset: int) -> None:
        """Drop a partition's mark once all records that it holds in doubt are before this offset, and so answered."""
        if source in self._custody and not self._custody[source].is_in_doubt(offset):
            del self._custody[source]

    def _take_over(self, committed: Mapping[Source, PartitionProgress]) -> None:
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
