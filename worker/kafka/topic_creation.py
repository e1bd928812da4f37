"""The topics of a worker: requests, bulk requests, and their dead letters."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aiokafka.errors import TopicAuthorizationFailedError

from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.wire.topics import DEAD_LETTER_PARTITIONS, dead_letter_topic


class _Outbox(Protocol):
    async def partitions(self, topic: str) -> int: ...


async def create_topics(cluster: KafkaCluster, outbox: _Outbox, topics: Sequence[str], num_partitions: int) -> None:
    """Create request topics that are missing, and those of their dead letters. Called before the worker joins.

    Raises KafkaRefused if the worker may not read a request topic.
    """
    await asyncio.gather(
        ensure_topics(cluster, topics, num_partitions),
        ensure_topics(cluster, [*map(dead_letter_topic, topics)], DEAD_LETTER_PARTITIONS),
    )
    # A member that joins before the brokers know a new topic gets nothing of it until the next look, 30 s later.
    known = await asyncio.gather(*map(outbox.partitions, topics), return_exceptions=True)
    for topic, partitions in zip(topics, known, strict=True):
        if isinstance(partitions, TopicAuthorizationFailedError):
            raise KafkaRefused(f"Kafka denies {topic} to this worker. It needs the ACL READ on it.")
