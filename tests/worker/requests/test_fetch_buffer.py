"""The fetch buffer: online and bulk apart, each in its order, a bounded number at once."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.kafka.progress.offsets import OffsetTracker
from penstock.worker.requests.fetch_buffer import FetchBuffer
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import RecordState

MakeRecord = Callable[..., Any]
BULK = "requests.bulk"


def make_buffer(held: Backpressure | None = None) -> FetchBuffer:
    held = held or Backpressure(100)
    return FetchBuffer(RecordLedger(held, OffsetTracker(), {BULK}), held)


@pytest.fixture
def buffer() -> FetchBuffer:
    return make_buffer()


def taken(buffer: FetchBuffer, *, bulk: bool) -> list[KafkaRecord]:
    return [record.original for record in buffer.take(bulk=bulk)]


@pytest.mark.parametrize(("topic", "bulk", "at_once"), [("requests", False, 256), (BULK, True, 32)])
def test_what_is_taken_is_bounded_and_in_order(
    buffer: FetchBuffer, make_record: MakeRecord, topic: str, bulk: bool, at_once: int
) -> None:
    records = [make_record(offset=offset, topic=topic) for offset in range(600)]
    buffer.put(records[:300])
    buffer.put(records[300:])
    found = taken(buffer, bulk=bulk)
    assert found == records[:at_once]
    assert taken(buffer, bulk=not bulk) == []
    while buffer.can_take(bulk=bulk):
        found += taken(buffer, bulk=bulk)
    assert found == records


@pytest.mark.parametrize(("topic", "bulk"), [("requests", False), (BULK, True)])
def test_a_record_larger_than_the_bound_comes_alone(
    buffer: FetchBuffer, make_record: MakeRecord, topic: str, bulk: bool
) -> None:
    large = make_record(bytes(1 << 20), topic=topic)
    small = make_record(b"x", offset=1, topic=topic)
    last = make_record(bytes(1 << 20), offset=2, topic=topic)
    buffer.put([large, small, last])
    assert taken(buffer, bulk=bulk) == [large]
    assert taken(buffer, bulk=bulk) == [small]
    assert taken(buffer, bulk=bulk) == [last]


def test_what_is_released_is_no_longer_held(make_record: MakeRecord) -> None:
    held = Backpressure(100)
    buffer = make_buffer(held)
    buffer.put([make_record(offset=1, topic=BULK)])
    buffer.put([make_record(offset=2), make_record(offset=3)])
    [begun, *_] = buffer.take(bulk=True)
    assert held.num_records == 3
    buffer.release()
    assert (buffer.can_take(bulk=False), buffer.can_take(bulk=True), held.num_records) == (False, False, 1)
    assert begun.state is RecordState.ADMITTED


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50))
def test_something_is_taken_while_records_wait(sizes: list[int]) -> None:
    class Record:
        topic = "requests"
        partition = 0
        key = None
        headers = ()

        def __init__(self, offset: int, size: int) -> None:
            self.offset = offset
            self.value = bytes(size)

    buffer = make_buffer()
    records: list[Any] = [Record(offset, size) for offset, size in enumerate(sizes)]
    buffer.put(records)
    found: list[KafkaRecord] = []
    while buffer.can_take(bulk=False):
        together = taken(buffer, bulk=False)
        assert together
        assert sum(len(record.value or b"") for record in together[:-1]) < 64 * 1024
        found += together
    assert found == records


class FakeConsumer:
    """Notes which topics are paused, and how long each poll may wait."""

    topics: ClassVar = {"requests": False, BULK: True}

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.polls_ms: list[int] = []
        self.assigned = asyncio.Event()
        self.assigned.set()

    @property
    def is_paused(self) -> bool:
        return bool(self.paused)

    def pause(self, topic: str) -> None:
        self.paused.add(topic)

    def resume(self, topic: str) -> None:
        self.paused.discard(topic)

    async def poll(self, timeout_ms: int) -> None:
        self.polls_ms.append(timeout_ms)


async def test_a_topic_is_paused_while_too_much_of_it_is_held_and_resumed_after(make_record: MakeRecord) -> None:
    held = Backpressure(4)
    buffer, consumer = make_buffer(held), FakeConsumer()
    given_to: Any = consumer
    await buffer.fill(given_to)
    assert consumer.paused == set()
    buffer.put([make_record(offset=offset, topic=BULK) for offset in range(8)])
    await buffer.fill(given_to)
    assert BULK in consumer.paused
    buffer.release()
    await buffer.fill(given_to)
    assert consumer.paused == set()


async def test_the_online_topic_is_paused_while_its_records_wait(make_record: MakeRecord) -> None:
    buffer, consumer = make_buffer(), FakeConsumer()
    given_to: Any = consumer
    buffer.put([make_record(offset=1)])
    await buffer.fill(given_to)
    assert consumer.paused == {"requests"}
    buffer.take(bulk=False)
    await buffer.fill(given_to)
    assert consumer.paused == set()
    assert consumer.polls_ms == [10, 200]  # soon again while a topic is paused
