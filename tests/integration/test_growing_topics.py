"""Partitions that are added while clients and workers run, and reply topics that do not exist. Real brokers."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, NewTopic

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.transport import outbox
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_PARTITION, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import StartWorker, Unique, letters_of, open_admin, reader_of


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """A broker that creates no topic on first use."""
    with KafkaBroker(config={"auto.create.topics.enable": "false", "broker.session.timeout.ms": "60000"}) as own:
        yield own


async def change(broker: KafkaBroker, what: str, argument: Any) -> None:
    async with open_admin(broker) as admin:
        await getattr(admin, what)(argument)


async def test_a_reply_to_an_added_partition_is_delivered_at_once(
    broker: KafkaBroker, start_worker: StartWorker
) -> None:
    model, replies = "growing", "penstock.replies.growing"
    await change(broker, "create_topics", [NewTopic(replies, 1, 1)])
    worker = start_worker(broker, served_name=model, echo_metadata_max_age_ms=300_000)
    await worker.ready()
    value = encode_request(Request(model, "embed", join_tokens([[1, 2]])))

    async def ask(producer: AIOKafkaProducer, partition: int) -> None:
        headers = [(REPLY_TOPIC, replies.encode()), (REPLY_PARTITION, partition.to_bytes(4, "big"))]
        await producer.send_and_wait(request_topic(model), value, headers=[*headers, (CORRELATION_ID, b"1")])
        consumer = reader_of(broker)
        async with consumer, asyncio.timeout(300):
            consumer.assign([TopicPartition(replies, partition)])
            await consumer.getone()

    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await ask(producer, 0)
        await change(broker, "create_partitions", {replies: NewPartitions(3)})
        await ask(producer, 2)  # the worker's next look without a cause is five minutes away
    assert not worker.events("reply_undeliverable")


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_reply_topics_that_do_not_exist_hold_up_nobody(
    broker: KafkaBroker, start_worker: StartWorker, delivery: str
) -> None:
    model, replies = f"nowhere-{delivery}", "penstock.replies.nowhere"
    topic = request_topic(model)
    await change(broker, "create_topics", [NewTopic(replies, 1, 1)])
    worker = start_worker(broker, served_name=model, partitions=1, delivery=delivery)
    await worker.ready()
    value = encode_request(Request(model, "embed", join_tokens([[1, 2]])))
    started = time.monotonic()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    client = Client(bootstrap_servers=broker.bootstrap_servers, model=model, reply_topic=replies, timeout_s=300)
    async with producer, client:
        for number in range(50):
            headers = [(REPLY_TOPIC, b"penstock.replies.missing-%d" % (number % 5)), (CORRELATION_ID, b"1")]
            await producer.send_and_wait(topic, value, headers=headers)
        assert (await client.request(Request(model, "embed", join_tokens([[7, 8]])))).vectors is not None
        kept = await letters_of(broker, topic, 50)
        assert len({letter.source for letter in kept}) == 50
        assert all(b"does not exist" in letter.headers["penstock-error-message"] for letter in kept)
        assert time.monotonic() - started < 38  # aiokafka alone asks for 40 s


async def test_a_client_sends_to_added_partitions(
    broker: KafkaBroker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "METADATA_MAX_AGE_MS", 500)
    model = unique("grown")
    topic = request_topic(model)
    await change(broker, "create_topics", [NewTopic(topic, 1, 1)])
    async with (
        Client(bootstrap_servers=broker.bootstrap_servers, model=model) as client,
        AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer,
        asyncio.timeout(300),
    ):
        await change(broker, "create_partitions", {topic: NewPartitions(6)})
        asking: list[asyncio.Task[Any]] = []  # no worker answers
        num_used = 0
        while num_used < 4:
            number = len(asking)
            asking.append(asyncio.create_task(client.request(Request(model, "embed", join_tokens([[1 + number]])))))
            await asyncio.sleep(0.05)
            ends = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(6)])
            num_used = sum(end > 0 for end in ends.values())
    await asyncio.gather(*asking, return_exceptions=True)
