"""Answers that wait for their transaction: a dead letter that records share is sent once, and with all of them."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions.waiting_answers import WaitingAnswers


@dataclass(slots=True)
class Letter(OutAnswer):
    """A dead letter of several records."""

    records: list[PendingRecord]

    @property
    def origins(self) -> list[PendingRecord]:
        return self.records


def owing(offset: int, num_owed: int) -> PendingRecord:
    return cast(PendingRecord, SimpleNamespace(original=SimpleNamespace(offset=offset), num_owed=num_owed))


def done(*_: Any) -> None:
    """Nobody is told."""


def test_a_shared_letter_answers_each_of_its_records_and_is_taken_once() -> None:
    records = [owing(7, 1), owing(8, 2)]
    letter = Letter(b"k", b"v", [], done, records[0], records)
    reply = OutAnswer(b"k", b"v", [], done, records[1])
    waiting = WaitingAnswers()
    waiting.put("letters", None, letter)
    assert [waiting.is_answered(offset) for offset in (7, 8, 9)] == [True, False, False]
    waiting.put("replies", 0, reply)
    assert [waiting.is_answered(offset) for offset in (7, 8)] == [True, True]
    assert [one.answer for one in waiting.of([7, 8])] == [letter, reply]
    assert waiting.take([7, 8]) == [letter, reply]
    assert len(waiting) == 0


def test_a_shared_letter_that_its_topic_refuses_answers_none_of_its_records() -> None:
    records = [owing(7, 1), owing(8, 1)]
    letter = Letter(b"k", b"v", [], done, records[0], records)
    waiting = WaitingAnswers()
    waiting.put("letters", None, letter)
    waiting.discard(letter)
    assert not waiting.is_answered(7)
    assert not waiting.is_answered(8)
    assert waiting.take_all() == []
