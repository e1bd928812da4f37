"""Answers that wait for their transaction: whole, and in order."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions.waiting_answers import WaitingAnswers

MakeRecord = Callable[..., Any]
SOURCE = ("penstock.requests.tiny", 0)


@pytest.fixture
def pending(make_record: MakeRecord) -> Callable[[int], PendingRecord]:
    return lambda offset: PendingRecord(make_record(offset=offset), SOURCE, False)


def answer(record: PendingRecord) -> OutAnswer:
    return OutAnswer(b"key", b"value", [], lambda answers, error: None, record)


def test_a_record_is_answered_when_all_that_it_is_owed_is_held(pending: Callable[[int], PendingRecord]) -> None:
    answers, record = WaitingAnswers(), pending(7)
    record.num_owed = 2
    assert not answers.is_answered(7)
    answers.put("replies", 0, answer(record))
    assert not answers.is_answered(7)
    answers.put("letters", None, answer(record))
    assert answers.is_answered(7)
    assert [outgoing.topic for outgoing in answers.of([7])] == ["replies", "letters"]


def test_a_refused_answer_makes_room_for_another(pending: Callable[[int], PendingRecord]) -> None:
    answers, record = WaitingAnswers(), pending(7)
    refused, other = answer(record), answer(record)
    answers.put("replies", 0, refused)
    answers.discard(refused)
    assert (len(answers), answers.is_answered(7)) == (0, False)
    answers.put("letters", None, other)
    assert answers.take([7]) == [other]
    assert len(answers) == 0


def test_a_dead_letter_that_is_tried_again_holds_up_its_record_until_it_is_given_up(
    pending: Callable[[int], PendingRecord],
) -> None:
    answers, record = WaitingAnswers(), pending(7)
    record.num_owed = 2
    letter = answer(record)
    answers.put("replies", 0, answer(record))
    answers.put("letters", None, letter)
    answers.discard(letter)
    assert not answers.is_answered(7)
    record.num_owed = 1
    assert answers.is_answered(7)
