"""The part of a topic that a consumer group has finished."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import BACKOFF_MS


class GroupProgress:
    """Made by `open_progress`. Methods raise KafkaUnreachable, and KafkaRefused if Kafka denies the group."""

    def __init__(self, cluster: KafkaCluster, admin: FailoverAdmin, group_id: str) -> None:
        self._cluster, self._admin = cluster, admin
        self.group_id = group_id

    async def committed(self, topic: str, num_partitions: int) -> Sequence[int]:
        """The offset of each partition before which the group has finished all; 0 where it has committed none."""
        sources = [TopicPartition(topic, partition) for partition in range(num_partitions)]
        async with self._cluster.patience():
            found = await self._offsets(sources)
        return [max(0, found[source].offset) for source in sources]

    async def _offsets(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Any]:
        while True:
            try:
                found: Mapping[TopicPartition, Any] = await self._admin.list_consumer_group_offsets(
                    self.group_id, partitions=sources
                )
            except GroupAuthorizationFailedError as error:
                raise KafkaRefused(
                    f"Kafka denies the group {self.group_id}. Its user needs the ACL DESCRIBE on it."
                ) from error
            except KafkaError as error:  # no coordinator yet, another one, or none that answers
                if not error.retriable:
                    raise
                await asyncio.sleep(BACKOFF_MS / 1e3)
            else:
                return found


@asynccontextmanager
async def open_progress(cluster: KafkaCluster, group_id: str) -> AsyncIterator[GroupProgress]:
    """Connect. Raises KafkaUnreachable."""
    admin = FailoverAdmin(**cluster.arguments)
    try:
        async with cluster.patience():
            await admin.start()
        yield GroupProgress(cluster, admin, group_id)
    finally:
        await admin.close()
