"""Produce requests underway to one broker: aiokafka's sender, with a stand-in for what its client sends."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.producer.transport.concurrent_producer import ConcurrentProducer

TOPIC = "replies"


class Broker:
    """Leads the partitions of one topic, and answers a produce request when the test says so."""

    def __init__(self, num_partitions: int) -> None:
        self.requests: list[list[int]] = []  # partitions of each request, in the order of arrival
        self._answers: list[asyncio.Future[Any]] = []
        self.producer: Any = ConcurrentProducer(bootstrap_servers="nowhere:1", enable_idempotence=True)
        self.producer._txn_manager.set_pid_and_epoch(7, 0)
        client = self.producer.client
        partitions = [(0, number, 1, [1], [1]) for number in range(num_partitions)]
        client.cluster.update_metadata(
            SimpleNamespace(
                API_VERSION=1,
                brokers=[(1, "nowhere", 1, None)],
                controller_id=1,
                topics=[(0, TOPIC, False, partitions)],
            )
        )
        client.send = self._receive

    async def _receive(self, _: int, request: Any) -> Any:
        ((_, batches),) = request._topics
        self.requests.append([partition for partition, _ in batches])
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        await answer
        answered = [(partition, 0, 0, -1, 0) for partition, _ in batches]
        return SimpleNamespace(API_VERSION=7, topics=[(TOPIC, answered)])

    async def send(self, partition: int) -> "asyncio.Future[Any]":
        """Send a batch of one record; returns the future of its acknowledgement, after what can go out has."""
        batch = self.producer.create_batch()
        batch.append(timestamp=None, key=b"k", value=b"v")
        acknowledged: asyncio.Future[Any] = await self.producer.send_batch(batch, TOPIC, partition=partition)
        await settle()
        return acknowledged

    async def answer(self, number: int) -> None:
        self._answers[number].set_result(None)
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker(num_partitions=6)
    await made.producer._sender.start()
    yield made
    for number in range(len(made._answers)):
        if not made._answers[number].done():
            await made.answer(number)
    await made.producer.stop()


async def test_batches_of_several_partitions_go_out_without_waiting_for_one_another(broker: Broker) -> None:
    first = await broker.send(0)
    await broker.send(1)
    assert broker.requests == [[0], [1]]
    await broker.answer(0)
    assert first.done()


async def test_a_partition_has_one_batch_underway(broker: Broker) -> None:
    await broker.send(0)
    second = asyncio.create_task(broker.send(0))
    await settle()
    assert broker.requests == [[0]]
    await broker.answer(0)
    await second
    assert broker.requests == [[0], [0]]


async def test_what_comes_while_three_requests_are_underway_shares_the_next(broker: Broker) -> None:
    for partition in range(5):
        await broker.send(partition)
    assert broker.requests == [[0], [1], [2]]
    await broker.answer(1)
    assert broker.requests == [[0], [1], [2], [3, 4]]
