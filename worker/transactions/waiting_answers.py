"""Answers of one partition that wait for their transaction. Pure bookkeeping."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.worker.replies.outlet import OutAnswer


class Outgoing(NamedTuple):
    """An answer and where it goes."""

    topic: str
    partition: int | None  # None: chosen by its key
    answer: OutAnswer


class WaitingAnswers:
    """Answers by the offset of their record. All are of one reading of the partition."""

    def __init__(self) -> None:
        self._answers: dict[int, list[Outgoing]] = {}

    def put(self, topic: str, partition: int | None, answer: OutAnswer) -> None:
        """Hold an answer."""
        self._answers.setdefault(answer.origin.original.offset, []).append(Outgoing(topic, partition, answer))

    def is_answered(self, offset: int) -> bool:
        """Whether all that this record is owed is held. A dead letter may be tried again for a minute."""
        held = self._answers.get(offset)
        return held is not None and len(held) >= held[0].answer.origin.num_owed

    def __len__(self) -> int:
        """Records, not answers."""
        return len(self._answers)

    def of(self, offsets: Iterable[int]) -> list[Outgoing]:
        """The answers of these records, in this order. They stay."""
        return [outgoing for offset in offsets for outgoing in self._answers[offset]]

    def take(self, offsets: Iterable[int]) -> list[OutAnswer]:
        """Remove the answers of these records."""
        return [outgoing.answer for offset in offsets for outgoing in self._answers.pop(offset)]

    def take_all(self) -> list[OutAnswer]:
        """Remove all answers."""
        return self.take(list(self._answers))

    def discard(self, answer: OutAnswer) -> None:
        """Remove an answer that its topic refuses. Its record is answered otherwise, or not at all."""
        offset = answer.origin.original.offset
        held = [outgoing for outgoing in self._answers.pop(offset) if outgoing.answer is not answer]
        if held:
            self._answers[offset] = held
