"""One partition's transactions after a failure: each answer is committed once, by whichever attempt."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from types import NoneType, SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    UnknownTopicOrPartitionError,
)

from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.kafka.progress.partition_marks import PartitionMarks
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions import partition_transactions
from penstock.worker.transactions.partition_transactions import PartitionTransactions
from penstock.worker.transactions.reply_leaders import STALL_S
from penstock.worker.transactions.transaction_plan import PartitionLost
from tests.worker.transactions.fakes import Broker, Producer

SOURCE = TopicPartition("requests", 0)
CLEAN = OwnerMarker()
MakeRecord = Callable[..., Any]


class KeptMarks(PartitionMarks):
    """Of one partition."""

    transactions: PartitionTransactions

    def _changed(self, sources: Collection[Source]) -> None:
        self.transactions.hasten()

    async def _commit_marks(self, sources: Collection[Source]) -> bool:
        return await self.transactions.commit_mark()


class Line:
    """Transactions of a partition whose records 0 to 3 are admitted, and what ended."""

    def __init__(self, make_record: MakeRecord) -> None:
        self.broker, self.offsets, self.marks = Broker(), OffsetTracker(), KeptMarks()
        self.offsets.start(SOURCE, [0, 1, 2, 3])
        self.done: list[tuple[bytes, KafkaError | None]] = []
        self.make_record = make_record
        carrier: Any = SimpleNamespace(producer=self.broker, topics=self.broker, leaders=self.broker)
        make_producer: Any = lambda: Producer(self.broker)  # noqa: E731 — of the type that is expected
        self.transactions = self.marks.transactions = PartitionTransactions(
            SOURCE,
            self.offsets,
            self.marks,
            make_producer,
            lambda: self.broker.ask_committed(SOURCE),
            carrier=carrier,
            group_id="g",
            window_s=0.0,
        )

    async def begin(self) -> None:
        await self.transactions.acquire()
        self.transactions.begin(self.broker.committed.get(SOURCE, PartitionProgress(0)))

    def record(self, offset: int) -> PendingRecord:
        return PendingRecord(self.make_record(offset=offset), SOURCE, False, epoch=self.offsets.epoch(SOURCE))

    def answer(self, *offsets: int) -> None:
        for offset in offsets:
            assert self.put(self.record(offset)) == []

    def put(self, record: PendingRecord, topic: str = "replies", partition: int = 0) -> list[OutAnswer]:
        key = b"%d" % record.original.offset
        return self.transactions.put(topic, partition, [OutAnswer(key, b"", [], self.ended, record)])

    def ended(self, answers: Sequence[OutAnswer], error: KafkaError | None) -> None:
        self.done += [(answer.key or b"", error) for answer in answers]
        for answer in answers:
            if error is None and answer.origin.epoch == self.offsets.epoch(SOURCE):  # as the ledger
                self.offsets.finish(SOURCE, [answer.origin.original.offset])

    @property
    def committed(self) -> PartitionProgress | None:
        return self.broker.committed.get(SOURCE)


@pytest.fixture
async def line(make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(partition_transactions, "_RETRY_S", 0.0)
    made = Line(make_record)
    await made.begin()
    return made


async def test_answers_are_committed_up_to_the_first_record_without_one(line: Line) -> None:
    line.answer(3, 1, 0)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1"], PartitionProgress(2))
    assert line.done == [(b"0", None), (b"1", None)]
    line.answer(2)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1", b"2", b"3"], PartitionProgress(4))


@pytest.mark.parametrize("happened", [False, True])
async def test_a_transaction_of_unknown_outcome_is_sent_again_only_if_it_was_not_committed(
    line: Line, happened: bool
) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(happened, KafkaError("connection lost"))]
    line.broker.is_deaf = 1  # at the first attempt to find out
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1"], PartitionProgress(2))
    assert line.done == [(b"0", None), (b"1", None)]
    assert line.broker.num_producers == 3


async def test_a_partition_of_which_another_worker_has_committed_is_lost(line: Line) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(False, KafkaError("connection lost"))]
    line.broker.committed[SOURCE] = PartitionProgress(1)
    with pytest.raises(PartitionLost, match="its committed offset is 1, and was 0"):
        await line.transactions.commit()
    assert line.broker.written == []
    await line.transactions.close()
    assert [(key, type(error)) for key, error in line.done] == [(b"0", AnswerDropped), (b"1", AnswerDropped)]


async def test_a_fenced_producer_has_lost_its_partition(line: Line) -> None:
    line.answer(0)
    line.broker.outcomes = [(False, ProducerFenced())]
    with pytest.raises(PartitionLost, match="another producer"):
        await line.transactions.commit()
    assert (line.broker.written, line.broker.num_producers) == ([], 1)


async def test_a_last_commit_that_waits_while_the_partition_is_lost_commits_no_offset_and_fences_nobody(
    line: Line,
) -> None:
    """The next owner has opened the id and committed nothing yet: the committed offset is still this owner's."""
    line.answer(0)
    line.broker.epochs["id"] += 1

    async def lose() -> None:
        with pytest.raises(PartitionLost, match="another producer"):
            await line.transactions.commit()
        await line.transactions.close()

    losing, last = asyncio.create_task(lose()), asyncio.create_task(line.transactions.commit())
    await losing
    with pytest.raises(PartitionLost, match="it was given up"):
        await last
    assert (line.broker.written, line.committed, line.broker.num_producers) == ([], None, 1)


async def test_an_answer_of_an_earlier_epoch_is_not_sent(line: Line) -> None:
    """The partition was revoked and came back while the record was computed."""
    late = line.record(0)
    line.offsets.restore({SOURCE: PartitionProgress(0)})
    line.offsets.start(SOURCE, [0])
    [dropped] = line.put(late)
    assert dropped.origin is late
    await line.transactions.commit()
    assert line.broker.written == []


async def test_offsets_that_begin_again_are_answered_and_committed(line: Line) -> None:
    """The topic was created again, or cut off, without a rebalance."""
    line.answer(0, 1, 2)
    await line.transactions.commit()
    line.offsets.start(SOURCE, [0, 1])
    line.answer(0)
    await line.transactions.commit()
    assert line.broker.written == [b"0", b"1", b"2", b"0"]
    assert line.broker.commits == [(3, 3), (0, 0), (1, 1)]  # the new beginning, then the answer
    assert line.committed == PartitionProgress(1)


async def test_answers_to_records_that_were_cut_off_do_not_stand_for_those_at_their_offsets(line: Line) -> None:
    line.answer(1, 2)  # and 0 is not answered yet
    first = line.record(0)
    line.offsets.start(SOURCE, [0, 1])
    [dropped] = line.put(first)
    assert dropped.origin is first
    line.answer(0)
    await line.transactions.commit()
    assert line.broker.commits == [(1, 1)]
    assert [(key, type(error)) for key, error in line.done[:2]] == [(b"1", AnswerDropped), (b"2", AnswerDropped)]
    assert line.done[2:] == [(b"0", None)]
    line.answer(1)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1"], PartitionProgress(2))


@pytest.mark.parametrize("happened", [False, True])
async def test_a_transaction_in_doubt_when_offsets_begin_again_is_settled(line: Line, happened: bool) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(happened, ConnectionLostAt(lambda: line.offsets.start(SOURCE, [0, 1])))]
    await line.transactions.commit()
    line.answer(0, 1)
    await line.transactions.commit()
    assert line.broker.written == [b"0", b"1"] * (1 + happened)
    assert line.committed == PartitionProgress(2)
    kinds = [(key, type(error)) for key, error in line.done]
    assert kinds == [(b"0", AnswerDropped), (b"1", AnswerDropped), (b"0", NoneType), (b"1", NoneType)]


class ConnectionLostAt(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """Something happens before it is noticed."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__("connection lost")
        self._happens: Callable[[], object] | None = happens

    def __repr__(self) -> str:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return "connection lost"


async def marked(line: Line, marker: OwnerMarker = CLEAN) -> bool:
    """Commit a mark, with the help of the partition's task."""
    running = asyncio.create_task(line.transactions.run())
    try:
        return await asyncio.wait_for(line.marks.mark({SOURCE: marker}), 60)
    finally:
        running.cancel()


@pytest.mark.parametrize("outcome", [None, (False, KafkaError("lost")), (True, KafkaError("lost"))])
async def test_a_mark_is_committed_without_any_answer(line: Line, outcome: tuple[bool, Exception] | None) -> None:
    line.answer(1)
    line.broker.outcomes = [outcome] if outcome else []
    assert await marked(line)
    assert (line.broker.commits, line.committed) == ([(0, 0)], PartitionProgress(0, marker=CLEAN))
    line.answer(0)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1"], PartitionProgress(2, marker=CLEAN))
    line.marks.hand_over()
    await line.transactions.commit()
    assert line.committed == PartitionProgress(2)


async def test_a_mark_does_not_wait_for_the_topics_of_answers(line: Line) -> None:
    line.answer(0)
    line.broker.outcomes = [(True, KafkaError("lost")), *[(False, KafkaError("no leader"))] * 3]
    assert await marked(line, OwnerMarker(1, 9, (0, 1)))
    assert line.committed == PartitionProgress(0, marker=OwnerMarker(1, 9, (0, 1)))


async def test_the_mark_of_doubtful_records_ends_behind_the_last_of_them(line: Line) -> None:
    line.answer(0, 1)
    assert await marked(line, OwnerMarker(1, 2, (0, 2)))
    line.marks.unname({SOURCE})
    await line.transactions.commit()
    assert line.committed == PartitionProgress(2, marker=CLEAN)
    assert not line.marks.has_redelivered


async def test_a_mark_of_a_fenced_owner_is_not_committed(line: Line) -> None:
    await Producer(line.broker).start()
    waiting = asyncio.create_task(line.marks.mark({SOURCE: CLEAN}))
    with pytest.raises(PartitionLost, match="another producer"):
        await asyncio.wait_for(line.transactions.run(), 60)
    await line.transactions.close()
    assert not await asyncio.wait_for(waiting, 60)
    assert line.committed is None
    assert not line.marks.is_marked(SOURCE)


async def test_a_broker_that_refuses_metadata_gets_offsets_alone(line: Line) -> None:
    line.answer(0)
    cause = KafkaError("in the sender")
    cause.__cause__ = OffsetMetadataTooLargeError()
    line.broker.outcomes = [(False, cause)]
    assert await marked(line)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0"], PartitionProgress(1))


async def test_answers_wait_for_a_reply_partition_without_a_leader_and_are_then_refused(line: Line) -> None:
    """No transaction is begun with it, as Kafka could not end it."""
    line.answer(0, 1)
    line.broker.missing = {"replies": 1.0}
    committing = asyncio.create_task(line.transactions.commit())
    for _ in range(10):
        await asyncio.sleep(0)
    assert (line.broker.commits, line.done) == ([], [])
    assert await marked(line)  # meanwhile
    line.broker.missing = {"replies": STALL_S}
    await asyncio.wait_for(committing, 60)
    assert [(key, type(error)) for key, error in line.done] == [(b"%d" % n, LeaderNotAvailableError) for n in (0, 1)]
    line.broker.missing = {}
    line.answer(0, 1)
    await line.transactions.commit()
    assert line.broker.written == [b"0", b"1"]


async def test_topics_and_partitions_that_do_not_exist_are_looked_for_at_the_same_time(line: Line) -> None:
    """Each look takes seconds, and whoever sends requests chooses the names and the numbers."""
    absent = [("nowhere-0", 0), ("nowhere-1", 0), ("replies", 7), ("replies", 8)]
    line.broker.absent, line.broker.looks = set(absent), asyncio.Barrier(2)  # none ends before another begins
    for offset, (topic, partition) in enumerate(absent):
        line.put(line.record(offset), topic, partition)
    await asyncio.wait_for(line.transactions.commit(), 60)
    assert [key for key, _ in line.done] == [b"0", b"1", b"2", b"3"]
    assert {type(error) for _, error in line.done} == {UnknownTopicOrPartitionError}


async def test_a_dead_letter_waits_for_its_leader(line: Line) -> None:
    record = line.record(0)
    topic = f"{record.original.topic}.dead-letter"
    line.broker.missing = {topic: 10 * STALL_S}
    line.transactions.put(topic, None, [OutAnswer(b"0", b"", [], line.ended, record)])
    committing = asyncio.create_task(line.transactions.commit())
    for _ in range(10):
        await asyncio.sleep(0)
    assert line.done == []
    line.broker.missing = {}
    await asyncio.wait_for(committing, 60)
    assert (line.broker.written, line.done) == ([b"0"], [(b"0", None)])


async def test_an_outage_of_all_brokers_costs_no_answer(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_transactions, "STALL_S", 0.01)
    line.answer(0)
    line.broker.outcomes = [(False, TimeoutError())]
    line.broker.stuck, line.broker.is_there = {"id"}, False
    committing = asyncio.create_task(line.transactions.commit())
    await asyncio.wait((committing,), timeout=0.1)
    assert (committing.done(), line.done) == (False, [])
    line.broker.stuck = set()
    await asyncio.wait_for(committing, 60)
    assert (line.broker.written, line.done) == ([b"0"], [(b"0", None)])


async def test_a_partition_whose_transaction_does_not_end_is_given_up(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers must not fill the worker. It is opened again in the background."""
    monkeypatch.setattr(partition_transactions, "STALL_S", 0.01)
    line.answer(0)
    line.broker.outcomes = [(False, TimeoutError())]
    line.broker.stuck = {"id"}
    with pytest.raises(PartitionLost, match="does not end"):
        await asyncio.wait_for(line.transactions.commit(), 60)
    await line.transactions.close()
    assert [(key, type(error)) for key, error in line.done] == [(b"0", AnswerDropped)]
    assert line.broker.written == []


@pytest.mark.parametrize(
    "error",
    [
        NotCoordinatorError(),
        CoordinatorNotAvailableError(),
        InvalidTxnState(),
        InvalidProducerIdMapping(),
        OutOfOrderSequenceNumber(),
        TimeoutError(),
        AssertionError("Invalid state transition"),
    ],
)
@pytest.mark.parametrize("happened", [False, True])
async def test_no_error_of_a_coordinator_that_changes_costs_or_doubles_an_answer(
    line: Line, error: Exception, happened: bool
) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(happened, error), (False, error)]
    line.broker.refusals = [error, error]
    line.broker.is_deaf = 1
    await line.transactions.commit()
    line.answer(2, 3)
    await line.transactions.commit()
    assert (line.broker.written, line.committed) == ([b"0", b"1", b"2", b"3"], PartitionProgress(4))
