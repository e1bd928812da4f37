"""The progress of each partition: its contiguous finished prefix, and what is finished beyond."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress.owner_marker import OwnerMarker

Source = tuple[str, int]  # topic and partition; equal to aiokafka's TopicPartition

_MOST_NAMED = 24 * 1024  # offsets beyond a commit's own that it may name; its metadata holds fewer
_MOST_KEPT = 2 * _MOST_NAMED  # finished offsets of a partition


class PartitionProgress(NamedTuple):
    """The content of a commit, for one partition."""

    offset: int  # the next one to read: all before it are finished
    beyond: frozenset[int] = frozenset()  # offsets from there on that are finished too
    marker: OwnerMarker | None = None  # of an owner that has not handed the partition over
    topic_id: bytes = NO_TOPIC_ID  # of the topic that the offsets are of


class PartitionOwner(Protocol):
    """Commits the offsets of the partitions that this worker has. The consumer calls it around their assignment."""

    async def acquire(self, sources: set[Source]) -> set[Source]:
        """Prepare partitions that were assigned. Cancelled if they are revoked.

        Returns those whose commits may be read, at least one if there are any. Called again for the others.
        """

    def acquired(self, sources: set[Source], committed: Mapping[Source, PartitionProgress]) -> None:
        """Take over partitions with their committed progress. Their records come from now on."""

    def own_mark(self, source: Source, found: OwnerMarker) -> OwnerMarker | None:
        """The mark with which a partition goes on if this worker itself has committed the one found; else None."""

    def skipped(self, source: Source, first: int, end: int) -> None:
        """Kafka no longer has the records of a partition from `first` on. It is read on from `end`."""

    async def release(self, sources: set[Source]) -> None:
        """Release partitions that were revoked, once their records are finished or given up."""


@dataclass(slots=True)
class _Partition:
    """One partition that this worker has.

    One record that is not finished, as one whose reply waits for a leader, may have millions behind it that are. Those
    that no commit can name yet are forgotten.
    """

    next_offset: int  # after the contiguous finished prefix
    epoch: int  # its number: each assignment begins another, and so do offsets that begin again
    topic_id: bytes
    started: deque[int] = field(default_factory=deque)  # from the first unfinished record on
    finished: set[int] = field(default_factory=set)  # of `started`
    forgotten: int = -1  # up to it, what is no longer in `started` is finished
    restored: set[int] = field(default_factory=set)  # finished by an earlier owner, and not read here yet
    num_given_up: int = 0

    @property
    def end(self) -> int:
        """No record before it is still to be started."""
        return max(self.forgotten, self.started[-1]) + 1 if self.started else self.next_offset

    @property
    def num_unfinished(self) -> int:
        return len(self.started) - len(self.finished) - self.num_given_up

    def finished_from(self, offset: int) -> frozenset[int]:
        """Finished offsets from `offset` on, as far as a commit of it can name them."""
        known = {one for one in self.finished | self.restored if offset <= one < offset + _MOST_NAMED}
        if self.forgotten >= offset:
            known.update(range(offset, min(self.forgotten + 1, offset + _MOST_NAMED)))
            known -= set(self.started) - self.finished
        return frozenset(known)

    def advance(self) -> None:
        """Take the finished prefix off, and forget what is finished far behind it."""
        started, finished = self.started, self.finished
        while started and started[0] in finished:
            offset = started.popleft()
            finished.remove(offset)
            self.next_offset = offset + 1
        if self.forgotten >= self.next_offset:
            self.next_offset = min(started[0] if started else self.forgotten + 1, self.forgotten + 1)
        if len(finished) > _MOST_KEPT:
            self._forget_far(self.next_offset + _MOST_NAMED)

    def _forget_far(self, end: int) -> None:
        self.forgotten = max(self.forgotten, *self.finished)
        self.started = deque([one for one in self.started if one < end or one not in self.finished])
        self.finished = {one for one in self.finished if one < end}


class OffsetTracker:
    """Offsets between `start` and `finish`. Pure bookkeeping; called on the worker's event loop only.

    `start` is called in the order of the partition, `finish` in any order, when the answer is acknowledged. After
    `forget` a record is read again, by this worker or another. Only records of the present epoch are finished.
    """

    def __init__(self) -> None:
        self._partitions: dict[Source, _Partition] = {}
        self._changed: dict[Source, None] = {}  # since the last commit; in this order
        self._num_unfinished = 0
        self._num_epochs = 0

    def restore(self, committed: Mapping[Source, PartitionProgress]) -> None:
        """Go on in assigned partitions from the progress that their last owners have committed."""
        for source, progress in committed.items():
            self._begin(source, progress.offset, progress.topic_id).restored.update(progress.beyond)

    def skip(self, source: Source, first: int, end: int) -> bool:
        """Go on at `end` if all before `first` is finished; else the record at `end` ends the gap. Returns whether."""
        partition = self._partitions.get(source)
        if partition is None or partition.started or partition.next_offset != first:
            return False
        partition.next_offset = end
        partition.restored = {offset for offset in partition.restored if offset >= end}
        return True

    def start(self, source: Source, offsets: Sequence[int]) -> list[int]:
        """Start records that are then admitted; their offsets increase. Returns those finished by an earlier owner."""
        partition = self._partitions.get(source)
        if partition is None or offsets[0] < partition.end:
            # New, or its log was truncated or the group's offset was reset: earlier offsets mean nothing now.
            partition = self._begin(source, offsets[0], NO_TOPIC_ID if partition is None else partition.topic_id)
        partition.started.extend(offsets)
        self._num_unfinished += len(offsets)
        if not partition.restored:
            return []
        already = [offset for offset in offsets if offset in partition.restored]
        partition.restored = {offset for offset in partition.restored if offset > offsets[-1]}
        self.finish(source, already)
        return already

    def epoch(self, source: Source) -> int:
        """The number of a partition's present epoch, between two assignments or resets of its offsets; 0 without one.

        Answers to records of an earlier epoch are ignored, because other records may have the same offsets now.
        """
        partition = self._partitions.get(source)
        return 0 if partition is None else partition.epoch

    def _begin(self, source: Source, offset: int, topic_id: bytes) -> _Partition:
        self.forget({source})
        self._num_epochs += 1
        partition = self._partitions[source] = _Partition(offset, self._num_epochs, topic_id)
        return partition

    def finish(self, source: Source, offsets: Iterable[int]) -> None:
        """Finish records whose answers are acknowledged."""
        partition = self._partitions.get(source)
        if partition is None or not partition.started:
            return
        started, finished = partition.started, partition.finished
        first, last = started[0], started[-1]
        num_before, offset_before = len(finished), partition.next_offset
        ended = [offset for offset in offsets if first <= offset <= last]
        finished.update(ended)
        if len(finished) == num_before:
            return
        self._num_unfinished -= len(finished) - num_before
        partition.advance()
        if partition.next_offset > offset_before or min(ended) < offset_before + _MOST_NAMED:
            self._changed[source] = None

    def give_up(self, source: Source, num_records: int) -> None:
        """Give up started records: nothing beyond them is committed until `forget`."""
        partition = self._partitions.get(source)
        if partition is not None:
            partition.num_given_up += num_records
            self._num_unfinished -= num_records

    def take_committable(self) -> dict[Source, PartitionProgress]:
        """The progress of each partition where it has changed since the last call."""
        changed, self._changed = self._changed, {}
        return {source: self._progress(self._partitions[source]) for source in changed}

    def put_back(self, sources: Iterable[Source]) -> None:
        """Offer these again after a commit that failed, unless the partition was revoked."""
        self._changed |= dict.fromkeys([source for source in sources if source in self._partitions])

    def prefix(self, source: Source, is_answered: Callable[[int], bool]) -> tuple[list[int], PartitionProgress]:
        """The unfinished offsets up to the first that is not answered, and the progress once they are finished."""
        partition = self._partitions.get(source)
        if partition is None:
            return [], PartitionProgress(0)
        end, answered = partition.next_offset, []
        for offset in partition.started:
            if offset not in partition.finished:
                if not is_answered(offset):
                    break
                answered.append(offset)
            end = offset + 1
        return answered, PartitionProgress(end, partition.finished_from(end), topic_id=partition.topic_id)

    def forget(self, sources: Iterable[Source]) -> None:
        """Forget partitions that were revoked."""
        for source in sources:
            partition = self._partitions.pop(source, None)
            self._changed.pop(source, None)
            if partition is not None:
                self._num_unfinished -= partition.num_unfinished

    def lag(self, ends: Mapping[Source, int]) -> dict[Source, int]:
        """Records from each partition's first unfinished one to its end. Partitions without progress are left out."""
        known = self._partitions
        return {source: max(0, end - known[source].next_offset) for source, end in ends.items() if source in known}

    @property
    def num_unfinished(self) -> int:
        """Records started and neither finished nor given up, over all partitions."""
        return self._num_unfinished

    @staticmethod
    def _progress(partition: _Partition) -> PartitionProgress:
        beyond = partition.finished_from(partition.next_offset)
        return PartitionProgress(partition.next_offset, beyond, topic_id=partition.topic_id)
