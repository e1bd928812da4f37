"""The contents of one partition's transactions, and whether the last one was committed. Pure bookkeeping."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.worker.kafka.progress import commit_metadata
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.partition_marks import PartitionMarks
from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.transactions.waiting_answers import Outgoing, WaitingAnswers


class PartitionLost(Exception):
    """Another worker commits this partition."""


class TransactionContent(NamedTuple):
    """The content of a transaction."""

    epoch: int  # of the partition; see `OffsetTracker.epoch`
    offsets: Sequence[int]  # of the records that it answers
    offset: int  # that it commits
    mark: str  # of the partition's owner
    metadata: str  # with the mark


class TransactionPlan:
    """Plans one transaction after another, from the partition's assignment to its revocation.

    Each transaction is announced by `begin`. Then `finish` says that it was committed, or `settle` finds out.
    """

    def __init__(self, source: Source, offsets: OffsetTracker, marks: PartitionMarks) -> None:
        self._source = source
        self._offsets = offsets
        self._marks = marks
        self._waiting: dict[int, WaitingAnswers] = {}  # by the epoch of their records; nearly always one
        self._committed = 0  # offset of the last commit, this owner's or an earlier one's; 0 without one
        self._mark = ""  # of this owner's last commit
        self._in_doubt: TransactionContent | None = None  # what may have been committed
        self._has_metadata = True

    def take_over(self, committed: PartitionProgress) -> None:
        """Go on after the last owner. `committed` was read when it was fenced."""
        self._committed = committed.offset

    def put(self, topic: str, partition: int | None, answers: Iterable[OutAnswer]) -> list[OutAnswer]:
        """Hold answers. Returns those of earlier epochs of the partition: they are not to be sent."""
        current, epoch = self._current, self._offsets.epoch(self._source)
        late: list[OutAnswer] = []
        for answer in answers:
            if answer.origin.epoch == epoch:
                current.put(topic, partition, answer)
            else:
                late.append(answer)
        return late

    @property
    def num_answered(self) -> int:
        """Records with answers that wait."""
        return len(self._current)

    @property
    def is_marked(self) -> bool:
        """Whether the owner's mark is committed as it is to be."""
        return self._before().mark == self._mark

    def next(self) -> TransactionContent | None:
        """The next transaction, if there is any: a new mark or beginning first, which waits for no reply topic."""
        before = self._before()
        if not before.epoch:  # it was revoked
            return None
        if before.mark != self._mark or before.offset < self._committed:
            return before
        answered = self._up_to(self._current.is_answered)
        return answered if answered.offsets or answered.offset > self._committed else None

    def answers(self, content: TransactionContent) -> list[Outgoing]:
        """The answers of a transaction."""
        return self._waiting[content.epoch].of(content.offsets) if content.offsets else []

    def begin(self, content: TransactionContent) -> None:
        """A transaction begins. From now on it may be committed."""
        self._in_doubt = content

    def finish(self) -> list[OutAnswer]:
        """The transaction is committed. Returns its answers, which are no longer held."""
        if self._in_doubt is None:
            raise RuntimeError("No transaction was begun. This is a bug.")
        content, self._in_doubt = self._in_doubt, None
        self._committed, self._mark = content.offset, content.mark
        self._marks.passed(self._source, content.offset)
        return self._waiting[content.epoch].take(content.offsets) if content.offsets else []

    def settle(self, committed: PartitionProgress) -> list[OutAnswer]:
        """As `finish`, if the transaction in doubt was committed. `committed` was read when all others were fenced.

        Raises PartitionLost if another worker has committed.
        """
        offset = committed.offset
        mark = "" if committed.marker is None else committed.marker.text()
        if self._in_doubt is not None and (offset, mark) == (self._in_doubt.offset, self._in_doubt.mark):
            return self.finish()
        self._in_doubt = None
        if offset != self._committed:
            raise PartitionLost(f"its committed offset is {offset}, and was {self._committed}")
        return []

    def discard(self, answer: OutAnswer) -> None:
        """Its topic does not take this answer. The record is answered otherwise, or not at all."""
        self._waiting[answer.origin.epoch].discard(answer)

    def drop_metadata(self) -> None:
        """The broker takes none of this size: offsets are committed alone."""
        self._has_metadata, self._mark = False, ""

    def take_stale(self) -> list[OutAnswer]:
        """Remove the answers of earlier epochs: the topic has other records at their offsets, or none."""
        epoch = self._offsets.epoch(self._source)
        stale = [answer for one in self._waiting.keys() - {epoch} for answer in self._waiting.pop(one).take_all()]
        if stale and self._in_doubt is not None:
            self._in_doubt = self._in_doubt._replace(offsets=())
        return stale

    def take_all(self) -> list[OutAnswer]:
        """Remove all answers."""
        return [answer for waiting in self._waiting.values() for answer in waiting.take_all()]

    @property
    def _current(self) -> WaitingAnswers:
        return self._waiting.setdefault(self._offsets.epoch(self._source), WaitingAnswers())

    def _before(self) -> TransactionContent:
        """The content without any of the held answers."""
        return self._up_to(lambda offset: False)

    def _up_to(self, is_answered: Callable[[int], bool]) -> TransactionContent:
        epoch = self._offsets.epoch(self._source)
        offsets, end = self._offsets.prefix(self._source, is_answered)
        if not self._has_metadata:
            return TransactionContent(epoch, offsets, end.offset, "", "")
        marker = self._marks.mark_at(self._source, end.offset)
        mark = "" if marker is None else marker.text()
        return TransactionContent(epoch, offsets, end.offset, mark, commit_metadata.of(end._replace(marker=marker)))
