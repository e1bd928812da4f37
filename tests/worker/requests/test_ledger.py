"""The life of a record: each step once and in order, with back-pressure and commits following."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.producer.wire.messages import Options
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord, RecordState
from penstock.worker.requests.sequence_block import SequenceBlock

MakeRecord = Callable[..., Any]
MakeSequences = Callable[..., list[SequenceBlock]]
SOURCE = ("penstock.requests.tiny", 0)


class Books:
    """A ledger, and what it keeps up to date."""

    def __init__(self) -> None:
        self.held = Backpressure(1)
        self.offsets = OffsetTracker()
        self.ledger = RecordLedger(self.held, self.offsets, {"bulk"})

    def admitted(self, make_record: MakeRecord, *offsets: int) -> list[PendingRecord]:
        records = self.ledger.receive([make_record(b"12345", offset=offset) for offset in offsets])
        self.ledger.admit(records)
        return records


@pytest.fixture
def books() -> Books:
    return Books()


def test_a_record_is_counted_from_the_poll_to_the_acknowledgement(books: Books, make_record: MakeRecord) -> None:
    [record] = books.ledger.receive([make_record(offset=7)])
    assert (record.state, books.held.num_records, books.ledger.num_unfinished) == (RecordState.RECEIVED, 1, 0)
    books.ledger.admit([record])
    assert books.ledger.num_unfinished == 1
    books.ledger.answer([record])
    assert (books.held.num_records, books.offsets.take_committable()) == (1, {})
    books.ledger.acknowledge([record])
    assert (record.state, books.held.num_records, books.ledger.num_unfinished) == (RecordState.ACKNOWLEDGED, 0, 0)
    assert books.offsets.take_committable() == {SOURCE: PartitionProgress(8)}


@pytest.mark.parametrize("end", ["answer", "give_up"])
def test_sequences_are_counted_until_their_record_ends(
    books: Books, make_record: MakeRecord, make_sequences: MakeSequences, end: str
) -> None:
    [record] = books.admitted(make_record, 0)
    books.ledger.queue([make_sequences(*[[n] for n in range(8)], record=record)[0].request])
    assert (record.state, books.held.can_admit()) == (RecordState.QUEUED, False)
    getattr(books.ledger, end)([record])
    assert books.held.can_admit()


@pytest.mark.parametrize(("num_tokens", "has_room"), [(8 * 128 - 1, True), (8 * 128, False)])
def test_long_pairs_of_few_bytes_are_counted_by_their_tokens(
    books: Books, make_record: MakeRecord, make_sequences: MakeSequences, num_tokens: int, has_room: bool
) -> None:
    [record] = books.admitted(make_record, 0)
    [block] = make_sequences([1], options=Options(labels=("a", "b")), record=record)
    block.request.note_tokens(num_tokens)
    books.ledger.queue([block.request])
    assert books.held.can_admit() is has_room
    books.ledger.answer([record])
    assert books.held.can_admit()


def test_a_record_that_is_given_up_is_neither_held_nor_waited_for_nor_committed(
    books: Books, make_record: MakeRecord, make_sequences: MakeSequences
) -> None:
    lost, kept = books.admitted(make_record, 0, 1)
    books.ledger.queue([make_sequences([1], [2], record=record)[0].request for record in (lost, kept)])
    books.ledger.give_up([lost])
    books.ledger.answer([kept])
    books.ledger.acknowledge([kept])
    assert (lost.state, books.held.num_records, books.ledger.num_unfinished) == (RecordState.RELEASED, 0, 0)
    assert books.offsets.take_committable() == {SOURCE: PartitionProgress(0, frozenset({1}))}
    books.ledger.forget({SOURCE})
    assert books.ledger.num_unfinished == 0


def test_a_record_is_answered_once(books: Books, make_record: MakeRecord) -> None:
    [record] = books.admitted(make_record, 0)
    books.ledger.answer([record])
    with pytest.raises(RuntimeError, match=r"answered cannot become answered\. This is a bug"):
        books.ledger.answer([record])
    books.ledger.acknowledge([record])
    with pytest.raises(RuntimeError, match=r"acknowledged cannot become answered\. This is a bug"):
        books.ledger.answer([record])


def test_steps_cannot_be_left_out(books: Books, make_record: MakeRecord) -> None:
    [record] = books.ledger.receive([make_record()])
    for step in (books.ledger.answer, books.ledger.acknowledge):
        with pytest.raises(RuntimeError, match="received cannot become"):
            step([record])
    books.ledger.admit([record])
    with pytest.raises(RuntimeError, match="admitted cannot become released"):
        books.ledger.release([record])


def test_a_released_record_is_not_this_workers_to_answer(books: Books, make_record: MakeRecord) -> None:
    [record] = books.ledger.receive([make_record()])
    books.ledger.release([record])
    assert (books.held.num_records, books.ledger.num_unfinished) == (0, 0)
    with pytest.raises(RuntimeError, match="released cannot become admitted"):
        books.ledger.admit([record])


async def test_waiting_ends_with_the_last_acknowledgement_or_the_last_partition(
    books: Books, make_record: MakeRecord
) -> None:
    assert await books.ledger.wait_until_finished(0.0)
    [first, second] = books.admitted(make_record, 0, 1)
    for record in (first, second):
        assert not await books.ledger.wait_until_finished(0.0)
        books.ledger.answer([record])
        books.ledger.acknowledge([record])
    assert await books.ledger.wait_until_finished(0.0)
    books.admitted(make_record, 2)
    assert not await books.ledger.wait_until_finished(0.0)
    books.ledger.forget({SOURCE})
    assert await books.ledger.wait_until_finished(0.0)


async def test_waiting_for_answers_waits_for_no_acknowledgement(books: Books, make_record: MakeRecord) -> None:
    assert await books.ledger.wait_until_answered(0.0)
    [first, second] = books.admitted(make_record, 0, 1)
    books.ledger.give_up([first])
    assert not await books.ledger.wait_until_answered(0.0)
    books.ledger.answer([second])
    assert await books.ledger.wait_until_answered(0.0)


@pytest.mark.parametrize("end", ["answer", "give_up", "acknowledge", "forget"])
async def test_who_waits_for_a_record_is_woken_by_its_end(books: Books, make_record: MakeRecord, end: str) -> None:
    """It does not wait for its time-out, after which it would look too."""
    records = books.admitted(make_record, 0)
    if end == "acknowledge":
        books.ledger.answer(records)
    wait_until = books.ledger.wait_until_answered if end == "answer" else books.ledger.wait_until_finished
    waiting = asyncio.create_task(wait_until(3600.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    getattr(books.ledger, end)({SOURCE} if end == "forget" else records)
    for _ in range(2):  # the event, then the task
        await asyncio.sleep(0)
    assert waiting.done()
    assert await waiting


def test_the_end_of_a_topic_and_its_new_beginning_may_be_admitted_together(
    books: Books, make_record: MakeRecord
) -> None:
    old = books.ledger.receive([make_record(offset=offset) for offset in (8, 9)])
    new = books.ledger.receive([make_record(offset=offset) for offset in (0, 1)])
    books.ledger.admit([*old, *new])
    assert books.ledger.num_unfinished == 2
    books.ledger.answer([*old, *new])
    books.ledger.acknowledge([*new, *old])
    assert books.offsets.take_committable() == {SOURCE: PartitionProgress(2)}
    assert books.held.num_records == 0


def test_records_that_the_last_owner_answered_are_admitted_without_work(books: Books, make_record: MakeRecord) -> None:
    books.offsets.restore({SOURCE: PartitionProgress(3, frozenset({4, 5}))})
    records = books.ledger.receive([make_record(offset=offset) for offset in (3, 4, 5, 6)])
    to_answer = books.ledger.admit(records)
    assert [record.original.offset for record in to_answer] == [3, 6]
    assert (books.ledger.num_skipped, books.held.num_records, books.ledger.num_unfinished) == (2, 2, 2)
    assert {record.state for record in records[1:3]} == {RecordState.ACKNOWLEDGED}
    books.ledger.answer(to_answer)
    books.ledger.acknowledge(to_answer)
    assert books.offsets.take_committable() == {SOURCE: PartitionProgress(7)}


def test_the_end_of_an_earlier_epoch_counts_for_no_record_of_the_present_one(
    books: Books, make_record: MakeRecord
) -> None:
    """The topic was created again while records were computed."""
    first = books.admitted(make_record, 0, 1)
    second = books.admitted(make_record, 0, 1)
    books.ledger.answer(first[:1])
    books.ledger.acknowledge(first[:1])
    books.ledger.give_up(first[1:])
    assert (books.ledger.num_unfinished, books.offsets.take_committable()) == (2, {})
    books.ledger.answer(second)
    books.ledger.acknowledge(second)
    assert (books.ledger.num_unfinished, books.held.num_records) == (0, 0)
    assert books.offsets.take_committable() == {SOURCE: PartitionProgress(2)}


def test_keys_and_headers_count_as_memory(make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.kafka.backpressure._REQUEST_BYTES", 6014)
    backpressure = Backpressure(100)
    ledger = RecordLedger(backpressure, OffsetTracker(), {"bulk"})
    records = ledger.receive([make_record(key=b"k" * 1000, value=b"v" * 10, headers=[("name", b"h" * 5000)])])
    assert backpressure.is_full()
    ledger.release(records)
    assert not backpressure.is_full()
