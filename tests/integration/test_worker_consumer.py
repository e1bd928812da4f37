"""The worker's consumer against a real broker, when one partition's records cannot be read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import CorruptRecordException

from penstock.ops.kafka import KafkaBroker
from penstock.producer.aiokafka_internals import lenient_records
from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.group import evict
from penstock.worker.kafka.fetching.group_member import GroupMember
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress
from tests.integration.conftest import Unique

BROKEN = b"broken"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """While this list has items, a batch with a BROKEN record fails its check and removes one of them."""
    faults: list[str] = []
    read = lenient_records._Batch.__iter__

    def check(batch: Any) -> Iterator[Any]:
        records = list(read(batch))
        if faults and any(record.value == BROKEN for record in records):
            faults.pop()
            raise CorruptRecordException("Invalid CRC")
        return iter(records)

    monkeypatch.setattr(lenient_records._Batch, "__iter__", check)
    return faults


async def _pass(_: Any) -> None: ...


def consumer_of(
    broker: KafkaBroker,
    *topics: str,
    received: Callable[[Sequence[KafkaRecord], bytes], None] = lambda records, topic_id: None,
    revoked: Callable[[Any], Awaitable[None]] = _pass,
) -> Consumer:
    """A consumer of the group of these topics, and its committer."""
    member = GroupMember(f"group-{topics[0]}", worker=0, revision="r", fetch_max_wait_ms=50, drain_s=1)
    made = Consumer(
        KafkaCluster(broker.bootstrap_servers), dict.fromkeys(topics, False), member, received=received, revoked=revoked
    )
    Committer(OffsetTracker(), made)
    return made


@pytest.mark.parametrize("has_committed", [False, True])
async def test_an_error_of_one_partition_loses_no_record_of_any(
    kafka: KafkaBroker, unique: Unique, faults: list[str], has_committed: bool
) -> None:
    """Also of partitions without records so far, whose position only the group knows."""
    topic = unique("requests")
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    taken: list[tuple[int, int]] = []

    def take_all(records: Sequence[KafkaRecord], topic_id: bytes) -> None:
        taken.extend((record.partition, record.offset) for record in records)

    async def send(values: list[bytes]) -> None:
        for partition in range(4):
            for value in values:
                value = BROKEN if partition == 2 else value
                await producer.send_and_wait(topic, value, partition=partition)

    async def take(reader: Consumer, count: int) -> None:
        async with asyncio.timeout(300):
            while len(taken) < count:
                await reader.poll(100)

    async with producer:
        if has_committed:
            await send([b"before"])
            first = consumer_of(kafka, topic, received=take_all)
            await first.start()
            await take(first, 4)
            assert await first.commit({(topic, partition): PartitionProgress(1) for partition in range(4)})
            await first.stop(10.0)
        await send([b"a", b"b"])
        reader = consumer_of(kafka, topic, received=take_all)
        await reader.start()
        faults += ["at the start"] * 2
        await take(reader, 12 if has_committed else 8)
        await send([b"c"])
        faults += ["later"] * 3
        await take(reader, 16 if has_committed else 12)
        assert not faults
        await reader.stop(10.0)
    assert sorted(taken) == [(partition, offset) for partition in range(4) for offset in range(3 + has_committed)]


async def test_a_partition_that_stays_unreadable_does_not_stop_the_others(
    kafka: KafkaBroker, unique: Unique, faults: list[str]
) -> None:
    topic = unique("requests")
    taken: set[int] = set()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)

    def received(records: Sequence[KafkaRecord], topic_id: bytes) -> None:
        taken.update(record.partition for record in records)

    reader = consumer_of(kafka, topic, received=received)
    async with producer:
        for partition in range(4):
            await producer.send_and_wait(topic, BROKEN if partition == 1 else b"fine", partition=partition)
        faults += ["lasting"] * 1000
        await reader.start()
        async with asyncio.timeout(300):
            while len(taken) < 3:
                await reader.poll(100)
        await reader.stop(10.0)
    assert taken == {0, 2, 3}


@pytest.mark.parametrize("cause", ["evicted", "old generation"])
async def test_a_commit_after_a_rebalance_fails_and_the_member_joins_again(
    kafka: KafkaBroker, unique: Unique, cause: str
) -> None:
    """UnknownMemberId and IllegalGeneration: nothing is committed, and what is offered later is."""
    topic, cluster = unique("requests"), KafkaCluster(kafka.bootstrap_servers)
    joined: list[int] = []

    async def revoked(_: Any) -> None:
        joined.append(0)

    reader = consumer_of(kafka, topic, revoked=revoked)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"fine", partition=0)
    await reader.start()
    async with asyncio.timeout(300):
        await reader.assigned.wait()
        if cause == "evicted":
            await evict(cluster, f"group-{topic}", reader.member_id)
        else:
            reader._joined._coordinator.generation -= 1
        assert not await reader.commit({(topic, 0): PartitionProgress(1)})
        while not joined or not reader.assigned.is_set():
            await reader.poll(100)
        assert await reader.commit({(topic, 0): PartitionProgress(1)})
    assert (await reader.committed(TopicPartition(topic, 0))).offset == 1
    await reader.stop(10.0)


async def test_a_commit_waits_for_a_coordinator_that_restarts(unique: Unique) -> None:
    topic = unique("requests")
    with KafkaBroker() as broker:
        reader = consumer_of(broker, topic)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"fine", partition=0)
        await reader.start()
        async with asyncio.timeout(90):
            await reader.assigned.wait()
            await asyncio.to_thread(broker.kill)
            committing = asyncio.create_task(reader.commit({(topic, 0): PartitionProgress(1)}))
            await asyncio.to_thread(broker.start)
            while not await committing:  # the group may have forgotten its member
                await reader.poll(100)
                committing = asyncio.create_task(reader.commit({(topic, 0): PartitionProgress(1)}))
            assert (await reader.committed(TopicPartition(topic, 0))).offset == 1
        await reader.stop(10.0)
