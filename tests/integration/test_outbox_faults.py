"""The outbox goes on after a broker has failed one of its batches: each record ends once, in order. Real brokers."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest
from aiokafka.protocol.api import Request

from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord
from tests.integration.conftest import open_admin, reader_of

ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "broker.session.timeout.ms": "60000",  # as of the shared broker
}
TOPIC, LITERAL, WRITE, DENY = 2, 3, 4, 2  # numbers of Kafka's protocol


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(config=ACLS) as own:
        yield own


async def test_a_partition_goes_on_after_a_batch_that_the_broker_failed(broker: KafkaBroker) -> None:
    """The broker does not take records of more than 0.2 s of age, and is stopped for longer, once."""
    await _create(broker, "timely", {"message.timestamp.before.max.ms": "200"})
    outbox = Outbox(KafkaCluster(broker.bootstrap_servers), client_id="test")
    await outbox.start()
    outcomes = [await _send(outbox, "timely", b"0")]
    os.kill(broker.pid or 0, signal.SIGSTOP)
    sending = asyncio.create_task(_send(outbox, "timely", b"1"))
    await asyncio.sleep(0.6)
    os.kill(broker.pid or 0, signal.SIGCONT)
    outcomes += [await sending, await _send(outbox, "timely", b"2"), await _send(outbox, "timely", b"3")]
    await outbox.stop(1.0)
    assert outcomes == [None] * 4
    assert await _read(broker, "timely", 4) == [b"0", b"1", b"2", b"3"]


async def test_a_partition_goes_on_after_records_that_are_too_large_for_it(broker: KafkaBroker) -> None:
    """The broker keeps count of what an idempotent producer sends."""
    await _create(broker, "small", {"max.message.bytes": "1024"})
    outbox = Outbox(KafkaCluster(broker.bootstrap_servers), client_id="test")
    await outbox.start()
    outcomes = [await _send(outbox, "small", bytes(size)) for size in (10, 2000, 10, 2000, 2000, 10)]
    await outbox.stop(1.0)
    taken, refused = type(None), MessageSizeTooLargeError
    assert [type(outcome) for outcome in outcomes] == [taken, refused, taken, refused, refused, taken]


async def test_a_partition_goes_on_when_a_permission_is_restored(broker: KafkaBroker) -> None:
    await _create(broker, "guarded", {})
    outbox = Outbox(KafkaCluster(broker.bootstrap_servers), client_id="test")
    await outbox.start()
    assert await _send(outbox, "guarded", b"0") is None
    await _ask(broker, CreateAclsRequest(TOPIC, "guarded", LITERAL, "User:*", "*", WRITE, DENY))
    num_taken = 0  # before the broker has read the metadata log, and applies it
    while (denied := await _send(outbox, "guarded", b"1")) is None:
        num_taken += 1
    assert isinstance(denied, TopicAuthorizationFailedError)
    assert isinstance(await _send(outbox, "guarded", b"2"), TopicAuthorizationFailedError)
    await _ask(broker, DeleteAclsRequest(TOPIC, "guarded", LITERAL, "User:*", "*", WRITE, DENY))
    while (outcome := await _send(outbox, "guarded", b"3")) is not None:
        assert isinstance(outcome, TopicAuthorizationFailedError)
    assert await _send(outbox, "guarded", b"4") is None
    await outbox.stop(1.0)
    assert await _read(broker, "guarded", num_taken + 3) == [b"0", *[b"1"] * num_taken, b"3", b"4"]


async def _create(broker: KafkaBroker, topic: str, config: dict[str, str]) -> None:
    async with open_admin(broker) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=config)])


async def _ask(broker: KafkaBroker, request: Request) -> None:
    async with open_admin(broker) as admin:
        answer = await admin._send_request(request)
    assert "error_code=0" in str(answer), answer


async def _send(outbox: Outbox, topic: str, value: bytes) -> KafkaError | None:
    outcome: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    outbox.put(topic, 0, [OutRecord(b"key", value, [], lambda _, error: outcome.set_result(error))])
    return await asyncio.wait_for(outcome, 60)


async def _read(broker: KafkaBroker, topic: str, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    consumer = reader_of(broker, topic)
    async with consumer, asyncio.timeout(300):
        while len(values) < count:
            values.append((await consumer.getone()).value)
        end = (await consumer.end_offsets(consumer.assignment())).values()
    assert sum(end) == count
    return values
