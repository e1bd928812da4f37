"""What a consumer group has finished of a topic."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError

from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused


class GroupProgress:
    """Made by `open_progress`. Methods raise KafkaUnreachable, and KafkaRefused if Kafka denies the group."""

    def __init__(self, cluster: KafkaCluster, admin: FailoverAdmin, group_id: str) -> None:
        self._cluster, self._admin = cluster, admin
        self.group_id = group_id

    async def committed(self, topic: str, num_partitions: int) -> Sequence[int]:
        """The offset of each partition before which the group has finished all; 0 where it has committed none."""
        sources = [TopicPartition(topic, partition) for partition in range(num_partitions)]
        try:
            async with self._cluster.patience():
                found = await self._admin.list_consumer_group_offsets(self.group_id, partitions=sources)
        except GroupAuthorizationFailedError as error:
            raise KafkaRefused(
                f"Kafka denies the group {self.group_id}. Its user needs the ACL DESCRIBE on it."
            ) from error
        return [max(0, found[source].offset) for source in sources]


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
