"""The marks that the partitions of this worker are to have. How they are committed is up to the delivery."""

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Mapping

from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import Marks, OwnerMarker

_CLEAN = OwnerMarker()
_NUM_REMEMBERED = (
    16  # markers of a partition that name records: of several commits on their way, any may be the last one
)


class PartitionMarks(Marks):
    """Bookkeeping. A subclass commits what `mark_at` says, with every offset, and when `_changed` is called."""

    def __init__(self) -> None:
        self._markers: dict[Source, OwnerMarker] = {}  # also of partitions whose last owner died, and not marked yet
        self._marked: set[Source] = set()
        self._given: dict[Source, deque[OwnerMarker]] = {}  # that name records; also of lost partitions

    @property
    def has_redelivered(self) -> bool:
        return bool(self._markers)

    def is_marked(self, source: Source) -> bool:
        return source in self._marked

    def marker(self, source: Source) -> OwnerMarker:
        return self._markers.get(source, _CLEAN)

    async def mark(self, marks: Mapping[Source, OwnerMarker]) -> bool:
        self._markers |= {source: marker for source, marker in marks.items() if marker != _CLEAN}
        added = marks.keys() - self._marked
        self._marked |= added
        self._changed(marks)
        is_committed = await self._commit_marks(marks) and self._marked.issuperset(marks)
        if not is_committed:
            self._marked -= added
        return is_committed

    def unname(self, sources: Collection[Source]) -> None:
        for source in sources:
            if source in self._markers:
                self._markers[source] = self._markers[source]._replace(running=(0, 0), alone=False)
        self._changed(sources)

    def hand_over(self) -> None:
        marked, self._marked = self._marked, set()
        self._markers.clear()
        self._changed(marked)

    def mark_at(self, source: Source, offset: int) -> OwnerMarker | None:
        """The mark that belongs into a commit of this offset."""
        if source not in self._marked:
            return None
        marker = self.marker(source)
        if not marker.is_redelivered(offset):
            return _CLEAN
        given = self._given.setdefault(source, deque(maxlen=_NUM_REMEMBERED))
        if marker not in given:
            given.append(marker)
        return marker

    def own_mark(self, source: Source, found: OwnerMarker) -> OwnerMarker | None:
        """The mark with which a partition goes on if this process has committed the one that was found; else None.

        It has lost the partition without handing it over, as a producer that was fenced does, and has not died. Every
        owner that dies raises the count, so no other process commits an equal mark for the same records.
        """
        return next((one.resumed() for one in self._given.get(source, ()) if one.text() == found.text()), None)

    def passed(self, source: Source, offset: int) -> None:
        """Drop a partition's mark once all redelivered records are before this offset, and so answered."""
        if source in self._markers and not self._markers[source].is_redelivered(offset):
            del self._markers[source]

    def _take_over(self, committed: Mapping[Source, PartitionProgress]) -> None:
        """Take over the marks of owners that died, of partitions that were assigned."""
        left = {source: (one.marker, one.offset) for source, one in committed.items()}
        self._markers |= {source: found for source, (found, offset) in left.items() if found and found.until > offset}

    def _forget_marks(self) -> None:
        """Forget all marks: a rebalance revokes all partitions."""
        self._markers.clear()
        self._marked.clear()

    @abstractmethod
    def _changed(self, sources: Collection[Source]) -> None:
        """Commit the marks of these partitions soon, as they have changed."""

    @abstractmethod
    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        """Commit the marks of these partitions now. False if that failed, or the partitions are lost."""
