"""Answers of one partition that wait for their transaction. Pure bookkeeping."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.requests.record import PendingRecord


class Outgoing(NamedTuple):
    """An answer and where it goes."""

    topic: str
    partition: int | None  # None: chosen by its key
    answer: OutAnswer


class WaitingAnswers:
    """Answers by the offset of their record. All are of one epoch of the partition.

    A dead letter of several records is held for each of them. They are answered together, and taken together.
    """

    def __init__(self) -> None:
        self._answers: dict[int, list[Outgoing]] = {}
        self._records: dict[int, PendingRecord] = {}  # that have answers here

    def put(self, topic: str, partition: int | None, answer: OutAnswer) -> None:
        """Hold an answer."""
        outgoing = Outgoing(topic, partition, answer)
        for record in answer.origins:
            self._answers.setdefault(record.original.offset, []).append(outgoing)
            self._records[record.original.offset] = record

    def is_answered(self, offset: int) -> bool:
        """Whether all that this record is owed is held. A dead letter may be tried again for a minute."""
        held = self._answers.get(offset)
        return held is not None and len(held) >= self._records[offset].num_owed

    def __len__(self) -> int:
        """Records, not answers."""
        return len(self._answers)

    def of(self, offsets: Iterable[int]) -> list[Outgoing]:
        """The answers of these records, in this order. They stay."""
        found = [outgoing for offset in offsets for outgoing in self._answers[offset]]
        return list({id(outgoing): outgoing for outgoing in found}.values())

    def take(self, offsets: Iterable[int]) -> list[OutAnswer]:
        """Remove the answers of these records."""
        answers = [outgoing.answer for outgoing in self.of(offsets)]
        for answer in answers:
            self.discard(answer)
        return answers

    def take_all(self) -> list[OutAnswer]:
        """Remove all answers."""
        return self.take(list(self._answers))

    def discard(self, answer: OutAnswer) -> None:
        """Remove an answer that its topic refuses. Its records are answered otherwise, or not at all."""
        for record in answer.origins:
            offset = record.original.offset
            held = [outgoing for outgoing in self._answers.pop(offset) if outgoing.answer is not answer]
            if held:
                self._answers[offset] = held
            else:
                del self._records[offset]
