"""A fetch session with a real broker: records come one by one, and on after the broker has forgotten the session."""

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka import AIOKafkaProducer

from penstock.ops.kafka import KafkaBroker
from penstock.producer.aiokafka_internals.fetch_session import FetchSession, Offsets, SessionRequest
from penstock.producer.wire.topics import bulk_topic
from penstock.worker.kafka.kafka_record import KafkaRecord
from tests.integration.conftest import Unique
from tests.integration.test_worker_consumer import consumer_of

PARTITIONS = 8
FIRST, SECOND = 24, 48


async def test_records_come_within_a_session_and_after_its_broker_was_started_again(
    unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique("requests")
    taken: list[bytes | None] = []
    requests: list[SessionRequest] = []
    make = FetchSession.request

    def noted(session: FetchSession, offsets: Offsets) -> SessionRequest:
        requests.append(make(session, offsets))
        return requests[-1]

    def take(records: Sequence[KafkaRecord], topic_id: bytes) -> None:
        taken.extend(record.value for record in records)

    monkeypatch.setattr(FetchSession, "request", noted)
    with KafkaBroker(num_partitions=PARTITIONS) as broker:
        reader = consumer_of(broker, topic, bulk_topic(topic), received=take)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer, asyncio.timeout(120):
            await producer.partitions_for(topic)
            await producer.partitions_for(bulk_topic(topic))
            await reader.start()
            for number in range(SECOND):
                if number == FIRST:
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                name = bulk_topic(topic) if number % 3 == 0 else topic
                await producer.send_and_wait(name, str(number).encode(), partition=number % PARTITIONS)
                while len(taken) <= number:
                    await reader.poll(100)
        await reader.stop(10.0)
    assert taken == [str(number).encode() for number in range(SECOND)]
    sessions = {one.session for one in requests if one.epoch > 0}
    assert len(sessions) == 2
    assert all(sum(map(len, one.named.values())) <= 1 for one in requests if one.epoch > 0)
