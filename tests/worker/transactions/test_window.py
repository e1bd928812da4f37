"""Answers that wait for their transaction: whole, and in order."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.worker.replies.outlet import Answer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions.window import Window

MakeRecord = Callable[..., Any]
SOURCE = ("penstock.requests.tiny", 0)


@pytest.fixture
def pending(make_record: MakeRecord) -> Callable[[int], PendingRecord]:
    return lambda offset: PendingRecord(make_record(offset=offset), SOURCE, False)


def answer(record: PendingRecord) -> Answer:
    return Answer(b"key", b"value", [], lambda answers, error: None, record)


def test_a_record_is_answered_when_all_that_it_is_owed_is_held(pending: Callable[[int], PendingRecord]) -> None:
    window, record = Window(), pending(7)
    record.num_owed = 2
    assert not window.is_answered(7)
    window.put("replies", 0, answer(record))
    assert not window.is_answered(7)
    window.put("letters", None, answer(record))
    assert window.is_answered(7)
    assert [outgoing.topic for outgoing in window.of([7])] == ["replies", "letters"]


def test_a_refused_answer_makes_room_for_another(pending: Callable[[int], PendingRecord]) -> None:
    window, record = Window(), pending(7)
    refused, other = answer(record), answer(record)
    window.put("replies", 0, refused)
    window.discard(refused)
    assert (len(window), window.is_answered(7)) == (0, False)
    window.put("letters", None, other)
    assert window.take([7]) == [other]
    assert len(window) == 0


def test_a_dead_letter_that_is_tried_again_holds_up_its_record_until_it_is_given_up(
    pending: Callable[[int], PendingRecord],
) -> None:
    window, record = Window(), pending(7)
    record.num_owed = 2
    letter = answer(record)
    window.put("replies", 0, answer(record))
    window.put("letters", None, letter)
    window.discard(letter)
    assert not window.is_answered(7)
    record.num_owed = 1
    assert window.is_answered(7)
