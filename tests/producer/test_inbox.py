"""Answers in, against a stand-in for aiokafka's consumer. No broker."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException, KafkaError
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.memory_records import MemoryRecords
from structlog.testing import capture_logs

from penstock.ops.kafka import MockBroker
from penstock.producer import BackendError, Expired, ShuttingDown
from penstock.producer.transport import inbox as module
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.inbox import Inbox
from penstock.producer.wire.codec import decode_reply, encode_reply
from penstock.producer.wire.headers import CORRELATION_ID, PARTIAL
from penstock.producer.wire.messages import ErrorReply, Generation, Reply


@dataclass
class Record:
    headers: list[tuple[str, bytes]]
    value: bytes
    offset: int = 0


def reply_to(correlation_id: bytes, number: float = 0.0) -> Record:
    value = encode_reply(Reply("m", "r", vectors=np.array([[number]], np.float32)))
    return Record([(CORRELATION_ID, correlation_id)], value)


class StandIn:
    """Hands out what lies in `polls`, one item a poll, raising the errors among them; then nothing, for ever."""

    def __init__(self, *polls: list[Record] | BaseException) -> None:
        self._polls = list(polls)
        self.assigned: list[TopicPartition] = []
        self.stopped = False

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True

    def assign(self, sources: list[TopicPartition]) -> None:
        self.assigned = sources

    async def seek_to_end(self, source: TopicPartition) -> None: ...

    async def position(self, source: TopicPartition) -> int:
        return 0

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        if not self._polls:
            await asyncio.Event().wait()
        polled = self._polls.pop(0)
        if isinstance(polled, BaseException):
            raise polled
        return {self.assigned[0]: polled}


def inbox_over(consumer: StandIn) -> Inbox:
    inbox = Inbox(KafkaCluster("nowhere:1"), "replies", client_id="test", fetch_max_wait_ms=1)
    inbox._make_consumer = lambda: consumer  # type: ignore[method-assign]  # the one place where aiokafka is made
    return inbox


def number(answer: Any) -> float:
    return float(answer.vectors[0, 0])


def partial_to(correlation_id: bytes, *tokens: int) -> Record:
    value = encode_reply(Reply("m", "r", generations=(Generation(tokens, "partial"),)))
    return Record([(CORRELATION_ID, correlation_id), (PARTIAL, b"0")], value)


async def test_partial_replies_end_no_call_and_reach_those_that_ask() -> None:
    broken = Record([(CORRELATION_ID, b"a"), (PARTIAL, b"0")], b"\xc1")
    polls = [partial_to(b"a", 1), broken, partial_to(b"b", 9), partial_to(b"a", 1, 2), reply_to(b"a", 1.0)]
    inbox = inbox_over(StandIn(polls, [partial_to(b"a", 1, 2, 3), reply_to(b"b", 2.0)]))
    partials: list[Any] = []
    a, b = inbox.expect(b"a", 1e12, lambda reply: partials.extend(reply.rows("generate"))), inbox.expect(b"b", 1e12)
    await inbox.start(1)
    assert number(await a) == 1.0
    inbox.forget(b"a")
    assert number(await b) == 2.0
    assert partials == [Generation((1,), "partial"), Generation((1, 2), "partial")]
    await inbox.stop(ShuttingDown("over"))


async def test_a_partial_reply_to_another_task_drops_no_other_reply() -> None:
    inbox = inbox_over(StandIn([partial_to(b"a", 1), reply_to(b"b", 2.0)]))
    inbox.expect(b"a", 1e12, lambda reply: reply.rows("embed"))
    b = inbox.expect(b"b", 1e12)
    await inbox.start(1)
    assert number(await b) == 2.0
    await inbox.stop(ShuttingDown("over"))


async def test_replies_reach_their_calls_in_any_order() -> None:
    inbox = inbox_over(StandIn([reply_to(b"b", 2.0), reply_to(b"unknown")], [reply_to(b"a", 1.0), reply_to(b"a", 9.0)]))
    a, b = inbox.expect(b"a", 1e12), inbox.expect(b"b", 1e12)
    await inbox.start(4)
    assert (number(await a), number(await b)) == (1.0, 2.0)
    await inbox.stop(ShuttingDown("closed"))


async def test_it_stands_on_one_partition_of_its_topic() -> None:
    consumer = StandIn()
    inbox = inbox_over(consumer)
    await inbox.start(4)
    assert consumer.assigned == [TopicPartition("replies", inbox.partition)]
    assert 0 <= inbox.partition < 4
    await inbox.stop(ShuttingDown("closed"))
    assert consumer.stopped


@pytest.mark.parametrize("error", [CorruptRecordException("bad bytes"), KafkaError("what is this")])
async def test_a_poll_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch, error: KafkaError) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    inbox = inbox_over(StandIn(error, error, [reply_to(b"a", 1.0)]))
    answer = inbox.expect(b"a", 1e12)
    await inbox.start(1)
    assert number(await asyncio.wait_for(answer, 60)) == 1.0
    await inbox.stop(ShuttingDown("closed"))


async def test_stopping_fails_what_is_expected() -> None:
    inbox = inbox_over(StandIn())
    answer = inbox.expect(b"a", 1e12)
    await inbox.start(1)
    await inbox.stop(ShuttingDown("closed"))
    with pytest.raises(ShuttingDown):
        await answer


async def test_only_what_is_late_expires() -> None:
    inbox = inbox_over(StandIn())
    late, early = inbox.expect(b"late", 10.0), inbox.expect(b"early", 20.0)
    inbox.expire(15.0, lambda: Expired("late"))
    assert (late.done(), early.done()) == (True, False)
    with pytest.raises(Expired):
        await late


@pytest.mark.parametrize("error", [UnicodeError("what is this"), AssertionError(), ValueError("unexpected")])
async def test_an_unexpected_error_does_not_end_the_reading(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    inbox = inbox_over(StandIn(error, [reply_to(b"a", 1.0)]))
    answer = inbox.expect(b"a", 1e12)
    await inbox.start(1)
    assert number(await asyncio.wait_for(answer, 60)) == 1.0
    await inbox.stop(ShuttingDown("closed"))


async def test_an_answer_that_breaks_the_decoder_fails_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(value: bytes) -> Reply | ErrorReply:
        if value == b"breaks it":
            raise RuntimeError("the decoder is broken")
        return decode_reply(value)

    monkeypatch.setattr(module, "decode_reply", decode)
    inbox = inbox_over(StandIn([Record([(CORRELATION_ID, b"a")], b"breaks it"), reply_to(b"b", 2.0)]))
    a, b = inbox.expect(b"a", 1e12), inbox.expect(b"b", 1e12)
    await inbox.start(1)
    with pytest.raises(BackendError, match="This is a bug"):
        await asyncio.wait_for(a, 60)
    assert number(await asyncio.wait_for(b, 60)) == 2.0
    await inbox.stop(ShuttingDown("closed"))


class NotUtf8(str):
    """A header name as a client in another language may write it."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


async def put_records(producer: AIOKafkaProducer, records: list[Record]) -> None:
    """One batch, by the slow builder, which takes header names of any bytes."""
    batch = producer.create_batch()
    batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, 1_000_000)
    for record in records:
        batch.append(timestamp=None, key=b"key", value=record.value, headers=record.headers)
    await (await producer.send_batch(batch, "replies", partition=0))


async def test_a_record_whose_header_name_is_not_utf8_is_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MemoryRecords", MemoryRecords)  # a worker in this process would have replaced it
    poisoned = Record([(NotUtf8("x"), b"x")], b"value")
    answers: dict[bytes, Any] = {}
    with MockBroker() as broker, capture_logs() as logs:
        inbox = Inbox(KafkaCluster(broker.bootstrap_servers), "replies", client_id="test", fetch_max_wait_ms=5)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.partitions_for("replies")
            await inbox.start(1)
            for name in (b"before", b"beside", b"after", b"later"):
                answers[name] = inbox.expect(name, 1e12)
            await put_records(producer, [reply_to(b"before", 1.0)])
            await put_records(producer, [reply_to(b"beside", 2.0), poisoned, poisoned])
            await put_records(producer, [reply_to(b"after", 3.0)])
            async with asyncio.timeout(300):
                assert [number(await answers[name]) for name in (b"before", b"beside", b"after")] == [1.0, 2.0, 3.0]
                await put_records(producer, [poisoned])
                await put_records(producer, [reply_to(b"later", 4.0)])
                assert number(await answers[b"later"]) == 4.0
        await inbox.stop(ShuttingDown("closed"))
    assert [(log["event"], log["offset"]) for log in logs] == [("reply_skipped", 2), ("reply_skipped", 5)]
