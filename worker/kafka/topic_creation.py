"""The topics of a worker: requests, bulk requests, outputs of routes, and dead letters."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.wire.topics import DEAD_LETTER_PARTITIONS, dead_letter_topic


class _Outbox(Protocol):
    async def partitions(self, topic: str) -> int: ...


async def create_topics(cluster: KafkaCluster, outbox: _Outbox, topics: Sequence[str], num_partitions: int) -> None:
    """Create request topics that are missing, and those of their dead letters. Called before the worker joins.

    Raises KafkaRefused if the worker may not read a request topic.
    """
    if not topics:
        return
    await asyncio.gather(ensure_topics(cluster, topics, num_partitions), _create_dead_letters(cluster, topics))
    # A member that joins before the brokers know a new topic gets nothing of it until the next look, 30 s later.
    known = await asyncio.gather(*map(outbox.partitions, topics), return_exceptions=True)
    for topic, partitions in zip(topics, known, strict=True):
        if isinstance(partitions, TopicAuthorizationFailedError):
            raise KafkaRefused(f"Kafka denies {topic} to this worker. It needs the ACL READ on it.")


async def create_outputs(cluster: KafkaCluster, outbox: _Outbox, routes: Mapping[str, str]) -> None:
    """Create output topics that are missing, with the partitions of their input topics; and those of dead letters.

    `routes`: input topic -> output topic. Raises KafkaRefused for an input topic that is missing, or denied: it is not
    the worker's to create.
    """
    for topic, output in routes.items():
        try:
            num_partitions = await outbox.partitions(topic)
        except UnknownTopicOrPartitionError as error:
            raise KafkaRefused(f"The input topic {topic} does not exist.") from error
        except TopicAuthorizationFailedError as error:
            raise KafkaRefused(f"Kafka denies {topic} to this worker. It needs the ACL READ on it.") from error
        await ensure_topics(cluster, [output], num_partitions)
    if routes:
        await _create_dead_letters(cluster, list(routes))


async def _create_dead_letters(cluster: KafkaCluster, topics: Sequence[str]) -> None:
    await ensure_topics(cluster, [*map(dead_letter_topic, topics)], DEAD_LETTER_PARTITIONS)
