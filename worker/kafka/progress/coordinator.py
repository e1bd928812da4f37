"""The group's coordinator, as a consumer of aiokafka (0.14) knows it. aiokafka has no public way to any of this."""

from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition


def member_id(consumer: AIOKafkaConsumer) -> str:
    """Kafka's name of this member; empty before it has one."""
    return str(consumer._coordinator.member_id)


def is_evicted(consumer: AIOKafkaConsumer) -> bool:
    """Whether the group has told this member that it went on without it, and it has not joined again."""
    return bool(consumer._coordinator.generation < 0)


def rejoin(consumer: AIOKafkaConsumer) -> None:
    """Give all partitions back, and get new ones."""
    consumer._coordinator.request_rejoin()


def rejoin_if_stuck(consumer: AIOKafkaConsumer) -> None:
    """Join the group again if aiokafka's task that reads committed offsets has died, as it does of a denied ACL.

    aiokafka restarts it in a rebalance only; until then some partitions have no position, and every poll fails.
    """
    task = consumer._coordinator._commit_refresh_task
    if task is not None and task.done():
        rejoin(consumer)


async def fetch_committed(
    consumer: AIOKafkaConsumer, sources: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, str]]:
    """Offsets and metadata that are committed. aiokafka's public method returns the offset alone.

    Partitions without a commit are left out. Raises KafkaError.
    """
    found: dict[TopicPartition, Any] = await consumer._coordinator.fetch_committed_offsets(list(sources))
    return {source: (commit.offset, commit.metadata) for source, commit in found.items()}
