"""One partition's transactions after a failure: each answer is committed once, by whichever attempt."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from penstock.worker.kafka.offsets import OffsetTracker, Progress
from penstock.worker.replies.outlet import Answer
from penstock.worker.requests.record import PendingRecord
from penstock.worker.transactions import partition
from penstock.worker.transactions.batches import Batch
from penstock.worker.transactions.partition import PartitionLost, PartitionTransactions

SOURCE = TopicPartition("requests", 0)
MakeRecord = Callable[..., Any]


class Broker:
    """The commits, and the outcomes of the next commits: an error before, or after it has happened, or None."""

    def __init__(self) -> None:
        self.committed: Progress | None = None
        self.written: list[bytes] = []
        self.outcomes: list[tuple[bool, Exception]] = []  # whether it has happened; the error
        self.num_producers = 0
        self.is_deaf = 0  # how often the question for what is committed fails

    async def ask_committed(self) -> Progress | None:
        if self.is_deaf:
            self.is_deaf -= 1
            raise KafkaError("no answer")
        return self.committed

    async def partitions(self, *_: object) -> set[int]:
        return {0}

    check_partition = partitions


class Producer:
    """Also the builder of its batches."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        broker.num_producers += 1

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def abort(self) -> None: ...

    def create_batch(self) -> "Producer":
        return self

    def append(self, **_: object) -> bool:
        return True

    async def commit(self, batches: Sequence[Batch], source: object, offset: int, *_: object) -> None:
        happened, error = self.broker.outcomes.pop(0) if self.broker.outcomes else (True, None)
        if happened:
            self.broker.written += [answer.key for batch in batches for answer in batch.answers]
            self.broker.committed = Progress(offset)
        if error is not None:
            raise error


class Line:
    """Transactions of a partition whose records 0 to 3 are admitted, and what ended."""

    def __init__(self, make_record: MakeRecord) -> None:
        self.broker, self.offsets = Broker(), OffsetTracker()
        self.offsets.start(SOURCE, [0, 1, 2, 3])
        self.done: list[tuple[bytes, KafkaError | None]] = []
        self.make_record = make_record
        carrier: Any = type("Carrier", (), {"producer": None, "topics": self.broker})
        make_producer: Any = lambda: Producer(self.broker)  # noqa: E731 — of the type that is expected
        self.transactions = PartitionTransactions(
            SOURCE, self.offsets, make_producer, self.broker.ask_committed, carrier=carrier, group_id="g", window_s=0.0
        )

    async def begin(self) -> None:
        await self.transactions.acquire()
        self.transactions.begin(None)

    def answer(self, *offsets: int) -> None:
        for offset in offsets:
            record = PendingRecord(self.make_record(offset=offset), SOURCE, False)
            assert self.transactions.put("replies", 0, [Answer(b"%d" % offset, b"", [], self.ended, record)]) == []

    def ended(self, answers: Sequence[Answer], error: KafkaError | None) -> None:
        self.done += [(answer.key, error) for answer in answers]
        self.offsets.finish(SOURCE, [answer.origin.original.offset for answer in answers])


@pytest.fixture
async def line(make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(partition, "_RETRY_S", 0.0)
    made = Line(make_record)
    await made.begin()
    return made


async def test_answers_are_committed_up_to_the_first_record_without_one(line: Line) -> None:
    line.answer(3, 1, 0)
    await line.transactions.commit()
    assert (line.broker.written, line.broker.committed) == ([b"0", b"1"], Progress(2))
    assert line.done == [(b"0", None), (b"1", None)]
    line.answer(2)
    await line.transactions.commit()
    assert (line.broker.written, line.broker.committed) == ([b"0", b"1", b"2", b"3"], Progress(4))


@pytest.mark.parametrize("happened", [False, True])
async def test_a_transaction_of_unknown_outcome_is_sent_again_only_if_it_was_not_committed(
    line: Line, happened: bool
) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(happened, KafkaError("connection lost"))]
    line.broker.is_deaf = 1  # at the first attempt to find out
    await line.transactions.commit()
    assert (line.broker.written, line.broker.committed) == ([b"0", b"1"], Progress(2))
    assert line.done == [(b"0", None), (b"1", None)]
    assert line.broker.num_producers == 3


async def test_a_partition_of_which_another_worker_has_committed_is_lost(line: Line) -> None:
    line.answer(0, 1)
    line.broker.outcomes = [(False, KafkaError("connection lost"))]
    line.broker.committed = Progress(1)
    with pytest.raises(PartitionLost, match="its committed offset is 1, and was None"):
        await line.transactions.commit()
    assert line.broker.written == []
    await line.transactions.close()
    assert [key for key, _ in line.done] == [b"0", b"1"]  # no longer held


async def test_a_fenced_producer_has_lost_its_partition(line: Line) -> None:
    line.answer(0)
    line.broker.outcomes = [(False, ProducerFenced())]
    with pytest.raises(PartitionLost, match="another producer"):
        await line.transactions.commit()
    assert (line.broker.written, line.broker.num_producers) == ([], 1)


async def test_a_late_answer_to_a_committed_record_is_not_sent(line: Line, make_record: MakeRecord) -> None:
    line.answer(0)
    await line.transactions.commit()
    late = Answer(b"0", b"", [], line.ended, PendingRecord(make_record(offset=0), SOURCE, False))
    assert line.transactions.put("replies", 0, [late]) == [late]
