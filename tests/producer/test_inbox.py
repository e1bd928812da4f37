"""Answers in, against a stand-in for aiokafka's consumer. No broker."""

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, KafkaError

from penstock.producer import Expired, ShuttingDown
from penstock.producer import inbox as module
from penstock.producer.headers import CORRELATION_ID
from penstock.producer.inbox import Inbox
from penstock.producer.messages import Reply
from penstock.producer.wire import encode_reply


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
    inbox = Inbox("nowhere:1", "replies", client_id="test", fetch_max_wait_ms=1)
    inbox._make_consumer = lambda: consumer  # type: ignore[method-assign]  # the one place where aiokafka is made
    return inbox


def number(answer: Any) -> float:
    return float(answer.vectors[0, 0])


async def test_answers_reach_those_who_wait_for_them_in_any_order() -> None:
    inbox = inbox_over(
        StandIn([reply_to(b"b", 2.0), reply_to(b"stranger")], [reply_to(b"a", 1.0), reply_to(b"a", 9.0)])
    )
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
    assert number(await asyncio.wait_for(answer, 5)) == 1.0
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
