"""A backlog of bulk in every partition does not keep online records out of a fetch."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from penstock.ops.kafka import KafkaBroker
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.wire.topics import NUM_PARTITIONS, bulk_topic
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.group_member import GroupMember
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.kafka.progress.offsets import OffsetTracker
from tests.integration.conftest import Unique, open_admin

MEMBERS = 5
RECORD = bytes(100 * 1024)


async def test_the_first_fetch_holds_every_online_record(kafka: KafkaBroker, unique: Unique) -> None:
    online = unique("requests")
    bulk = bulk_topic(online)
    async with open_admin(kafka) as admin:
        await admin.create_topics([NewTopic(topic, NUM_PARTITIONS, 1) for topic in (online, bulk)])
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=5) as producer:
        sends = [await producer.send(bulk, RECORD, partition=n % NUM_PARTITIONS) for n in range(3 * NUM_PARTITIONS)]
        sends += [await producer.send(online, b"urgent", partition=n) for n in range(NUM_PARTITIONS)]
        await asyncio.gather(*sends)
    online_first = [await _online_in_first_fetch(kafka, online, bulk, number) for number in range(MEMBERS)]
    assert online_first == [NUM_PARTITIONS] * MEMBERS


async def _online_in_first_fetch(kafka: KafkaBroker, online: str, bulk: str, number: int) -> int:
    """How many online records a member of a new group gets with the first records of all."""
    taken: list[str] = []

    def take(records: Sequence[KafkaRecord], topic_id: bytes) -> None:
        taken.extend(record.topic for record in records)

    async def revoked(_: object) -> None: ...

    reader = Consumer(
        KafkaCluster(kafka.bootstrap_servers),
        {online: False, bulk: True},
        GroupMember(f"group-{online}-{number}", worker=0, revision="r", fetch_max_wait_ms=50, drain_s=1),
        received=take,
        revoked=revoked,
    )
    Committer(OffsetTracker(), reader)
    await reader.start()
    async with asyncio.timeout(300):
        while not taken:
            await reader.poll(100)
    await reader.stop(10.0)
    assert bulk in taken
    return taken.count(online)
