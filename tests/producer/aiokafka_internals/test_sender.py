"""The sender of batches: one request at a time to a broker, and none is left when a request fails in an unknown way."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, NotLeaderForPartitionError
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.transaction_manager import TransactionManager

from penstock.producer.aiokafka_internals.produce_message import Produced
from penstock.producer.aiokafka_internals.sender import LeanSender

FIRST, SECOND, THIRD = (TopicPartition("replies", number) for number in range(3))
NOT_LEADER = NotLeaderForPartitionError.errno


class Broker:
    """aiokafka's client, with one broker that answers when a test says so."""

    def __init__(self) -> None:
        self.leaders = dict.fromkeys((FIRST, SECOND, THIRD), 7)
        self.cluster = SimpleNamespace(leader_for_partition=self.leaders.get)
        self.requests: list[tuple[Any, asyncio.Future[Any]]] = []
        self.refreshing: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.num_refreshes = 0

    async def send(self, node_id: int, request: Any) -> Any:
        self.requests.append((request, asyncio.get_running_loop().create_future()))
        return await self.requests[-1][1]

    def force_metadata_update(self) -> asyncio.Future[bool]:
        self.num_refreshes += 1
        return self.refreshing

    async def _maybe_wait_metadata(self) -> None: ...

    def asked(self, index: int) -> list[int]:
        """The partitions of a request."""
        return [number for _, partitions in self.requests[index][0]._topics for number, _ in partitions]

    def answer(self, index: int, error: int = 0) -> None:
        partitions = [(number, error, 5, -1, 0, (), None) for number in self.asked(index)]
        self.requests[index][1].set_result(Produced([("replies", partitions)]))


class Sent:
    """A started sender and its broker."""

    def __init__(self, retry_backoff_ms: int = 0) -> None:
        self.broker = Broker()
        numbers = TransactionManager(None, 0)
        numbers.set_pid_and_epoch(1, 0)
        self._waiting = MessageAccumulator(self.broker.cluster, 1 << 16, 0, 30, txn_manager=numbers)
        options: dict[str, Any] = {"acks": -1, "retry_backoff_ms": retry_backoff_ms, "request_timeout_ms": 1000}
        self.sender = LeanSender(self.broker, txn_manager=numbers, message_accumulator=self._waiting, **options)

    async def put(self, source: TopicPartition) -> asyncio.Future[Any]:
        batch = self._waiting.create_builder()
        batch.append(timestamp=None, key=b"key", value=b"value")
        acknowledged: asyncio.Future[Any] = await self._waiting.add_batch(batch, source, 30)
        return acknowledged


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def sent() -> AsyncIterator[Sent]:
    made = Sent()
    await made.sender.start()
    await turns()
    yield made
    await made.sender.close()


async def test_batches_that_come_during_a_request_are_sent_together_when_it_has_ended(sent: Sent) -> None:
    first = await sent.put(FIRST)
    await turns()
    others = [await sent.put(FIRST), await sent.put(SECOND), await sent.put(THIRD)]
    await turns()
    assert len(sent.broker.requests) == 1
    sent.broker.answer(0)
    await turns()
    assert first.done()
    assert sorted(sent.broker.asked(1)) == [0, 1, 2]
    sent.broker.answer(1)
    await asyncio.gather(*others)
    assert len(sent.broker.requests) == 2


async def test_a_batch_that_the_broker_does_not_lead_any_more_is_sent_again(sent: Sent) -> None:
    acknowledged = await sent.put(FIRST)
    await turns()
    sent.broker.answer(0, NOT_LEADER)
    await turns()
    sent.broker.answer(1)
    await acknowledged


async def test_a_batch_without_a_leader_waits_for_metadata_and_no_other_does(sent: Sent) -> None:
    del sent.broker.leaders[FIRST]
    acknowledged, other = await sent.put(FIRST), await sent.put(SECOND)
    await turns()
    assert sent.broker.asked(0) == [SECOND.partition]
    sent.broker.answer(0)
    await other
    sent.broker.leaders[FIRST] = 7
    sent.broker.refreshing.set_result(True)
    await turns()
    sent.broker.answer(1)
    await acknowledged


async def test_metadata_without_a_leader_is_asked_for_again_after_a_backoff_only() -> None:
    """A partition has no leader for as long as all of its brokers are away."""
    sent = Sent(retry_backoff_ms=3_600_000)
    del sent.broker.leaders[FIRST]
    sent.broker.refreshing.set_result(True)
    await sent.sender.start()
    await sent.put(FIRST)
    await turns()
    other = await sent.put(SECOND)
    await turns()
    sent.broker.answer(0)
    await other
    assert sent.broker.num_refreshes == 1
    await sent.sender.close()


async def test_a_request_that_fails_in_an_unknown_way_fails_its_batches_and_all_later_ones() -> None:
    sent = Sent()
    await sent.sender.start()
    acknowledged = await sent.put(FIRST)
    await turns()
    sent.broker.requests[0][1].set_exception(ValueError("a bug"))
    with pytest.raises(KafkaError):
        await acknowledged
    with pytest.raises(KafkaError):
        await sent.put(SECOND)
    assert sent.sender.sender_task.done()
