"""`--delivery exactly_once` under access control: what Kafka denies is named, or refused and answered otherwise."""

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress

import msgpack
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.admin import CreateAclsRequest

from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import StartWorker, open_admin, reader_of

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "broker.session.timeout.ms": "60000",  # as of the shared broker
}
TOPIC, TRANSACTIONAL_ID, LITERAL, PREFIXED, WRITE, DENY = 2, 5, 3, 4, 4, 2  # numbers of Kafka's protocol


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(config=ACLS) as own:
        yield own


async def deny(broker: KafkaBroker, kind: int, name: str, pattern: int) -> None:
    async with open_admin(broker) as admin:
        answer = await admin._send_request(CreateAclsRequest(kind, name, pattern, "User:*", "*", WRITE, DENY))
    assert "error_code=0" in str(answer), answer


async def is_open(broker: KafkaBroker, transactional_id: str) -> bool:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=transactional_id)
    try:
        await producer.start()
    except KafkaError:
        return False
    finally:
        await producer.stop()
    return True


async def test_a_transactional_id_that_is_denied_is_named(broker: KafkaBroker, start_worker: StartWorker) -> None:
    await deny(broker, TRANSACTIONAL_ID, "penstock.denied:", PREFIXED)
    async with asyncio.timeout(300):  # the broker applies it when it has read the metadata log
        while await is_open(broker, "penstock.denied:"):
            pass
    worker = start_worker(broker, served_name="denied", partitions=1, delivery="exactly_once")
    assert await worker.exit_code() != 0
    assert "Kafka denies the transactional id penstock.denied:penstock.requests.denied" in worker.tail()
    assert "ACLs WRITE and DESCRIBE" in worker.tail()


async def test_a_reply_topic_that_is_denied_gets_dead_letters_in_its_place(
    broker: KafkaBroker, start_worker: StartWorker
) -> None:
    """And the other answers of the same window are committed."""
    worker = start_worker(broker, served_name="open", partitions=1, delivery="exactly_once")
    await worker.ready()
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for topic in ("penstock.replies.open", "penstock.replies.denied"):
            await producer.partitions_for(topic)  # creates it
        await deny(broker, TOPIC, "penstock.replies.denied", LITERAL)
        with suppress(TopicAuthorizationFailedError):
            while True:  # the broker applies it when it has read the metadata log
                await producer.send_and_wait("penstock.replies.denied", b"")
        for n in range(30):
            ids, lens = struct.pack("<2I", n + 1, 5), struct.pack("<I", 2)
            value = msgpack.packb({"v": 1, "model": "open", "task": "embed", "ids": ids, "lens": lens})
            address = b"penstock.replies.denied" if n % 3 == 0 else b"penstock.replies.open"
            headers = [("kafka_correlationId", b"%d" % n), ("kafka_replyTopic", address)]
            await producer.send("penstock.requests.open", value, partition=0, headers=headers)
        await producer.flush()
    letters = "penstock.requests.open.dead-letter"
    reader = reader_of(broker, "penstock.replies.open", letters, isolation_level="read_committed")
    found: dict[str, list[int]] = {"penstock.replies.open": [], letters: []}
    async with reader, asyncio.timeout(300):
        while sum(map(len, found.values())) < 30:
            record = await reader.getone()
            found[record.topic].append(int(dict(record.headers)["kafka_correlationId"]))
    assert found["penstock.replies.open"] == [n for n in range(30) if n % 3]
    assert sorted(found[letters]) == list(range(0, 30, 3))
