"""The outbox before a real broker, which keeps count of what an idempotent producer sends."""

import asyncio

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord


async def test_a_partition_goes_on_after_records_that_are_too_large_for_it(kafka: KafkaBroker) -> None:
    topic = "outbox-of-small-records"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "1024"})])
    await admin.close()
    outbox = Outbox(KafkaCluster(kafka.bootstrap_servers), client_id="test")
    await outbox.start()
    outcomes = [await _sent(outbox, topic, bytes(size)) for size in (10, 2000, 10, 2000, 2000, 10)]
    await outbox.stop(1.0)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        MessageSizeTooLargeError,
        type(None),
        MessageSizeTooLargeError,
        MessageSizeTooLargeError,
        type(None),
    ]


async def _sent(outbox: Outbox, topic: str, value: bytes) -> KafkaError | None:
    outcome: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
    outbox.put(topic, 0, [OutRecord(b"key", value, [], lambda _, error: outcome.set_result(error))])
    return await asyncio.wait_for(outcome, 60)
