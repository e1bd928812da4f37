"""Faults of topics and of the group: privileges, partitions, strangers and copies."""

import asyncio
import random
import time
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from confluent_kafka import KafkaException

from penstock.ops.chaos.access import Privilege, allow, revoke
from penstock.ops.chaos.calls import REPLIES
from penstock.ops.chaos.not_injected import NotInjectedError
from penstock.ops.chaos.raw_load import RAW_REPLIES
from penstock.producer.wire.topics import dead_letter_topic

COPIED = "chaos-copy"  # header of replies that a fault has written again
_STORM_JOINS, _NUM_COPIES = 4, 200
_RESTORE_S = 180.0  # a privilege is granted again, though brokers may be away


class TopicFaults:
    """Each method injects and undoes one fault."""

    def __init__(self, servers: str, privileges: Sequence[Privilege], seconds: float) -> None:
        """`privileges`: those of the worker. `seconds`: how long one of them is missing."""
        self._servers = servers
        self._privileges = privileges
        self._topics = [name for kind, operation, name in privileges if (kind, operation) == ("TOPIC", "READ")]
        (self._group,) = [name for kind, _, name in privileges if kind == "GROUP"]
        self._seconds = seconds

    async def rebalance_storm(self, rng: random.Random) -> None:
        """A stranger joins the group, takes partitions, answers nothing and leaves, several times."""
        num_joined = 0
        for _ in range(_STORM_JOINS):
            stranger = AIOKafkaConsumer(
                *self._topics,
                bootstrap_servers=self._servers,
                group_id=self._group,
                partition_assignment_strategy=(RoundRobinPartitionAssignor,),
                enable_auto_commit=False,
            )
            try:
                async with asyncio.timeout(30):
                    await stranger.start()
                    num_joined += 1
                    await asyncio.sleep(rng.uniform(0.2, 1.5))
            except TimeoutError:
                pass
            finally:
                await stranger.stop()
        if not num_joined:
            raise NotInjectedError("No stranger could join.")

    async def partitions_added(self, rng: random.Random) -> None:
        """A request topic gets one more partition."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        try:
            topic = rng.choice(self._topics)
            (found,) = await admin.describe_topics([topic])
            await admin.create_partitions({topic: NewPartitions(len(found["partitions"]) + 1)})
        finally:
            await admin.close()

    async def access_revoked(self, rng: random.Random) -> None:
        """The worker may not use its group, read a topic, or write its dead letters."""
        letters = dead_letter_topic("")
        choices = [
            (kind, operation, name)
            for kind, operation, name in self._privileges
            if operation == "READ" or (operation == "WRITE" and name.endswith(letters))
        ]
        await self._without(rng.choice(choices))

    async def replies_refused(self, rng: random.Random) -> None:
        """The worker may not write the plain producers' reply topic: dead letters stand for the replies."""
        await self._without(("TOPIC", "WRITE", RAW_REPLIES))

    async def replies_copied(self, rng: random.Random) -> None:
        """The latest replies come again, in another order."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._servers)
        producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks="all")
        try:
            await consumer.start()
            await producer.start()
            sources = [TopicPartition(REPLIES, n) for n in await _partitions_of(consumer, REPLIES)]
            ends = await consumer.end_offsets(sources)
            consumer.assign(sources)
            for source, end in ends.items():
                consumer.seek(source, max(0, end - _NUM_COPIES // len(sources)))
            batches = await consumer.getmany(timeout_ms=2000, max_records=_NUM_COPIES)
            records = [record for batch in batches.values() for record in batch]
            if not records:
                raise NotInjectedError("There was no reply to copy.")
            rng.shuffle(records)
            for record in records:
                headers = [*record.headers, (COPIED, b"1")]
                await producer.send(REPLIES, record.value, record.key, partition=record.partition, headers=headers)
        finally:
            await producer.stop()
            await consumer.stop()

    async def _without(self, privilege: Privilege) -> None:
        await asyncio.to_thread(revoke, self._servers, privilege)
        await asyncio.sleep(self._seconds)
        until = time.monotonic() + _RESTORE_S
        while True:
            try:
                return await asyncio.to_thread(allow, self._servers, [privilege])
            except (KafkaException, TimeoutError):  # brokers are away by another fault
                if time.monotonic() > until:
                    raise


async def _partitions_of(consumer: AIOKafkaConsumer, topic: str) -> Sequence[int]:
    """Partitions of a topic to which the consumer need not be subscribed."""
    await consumer._client.add_topic(topic)  # aiokafka has no public way to ask for another topic
    return sorted(consumer.partitions_for_topic(topic) or ())
