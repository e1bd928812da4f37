"""aiokafka's consumer with the client, the fetcher and the coordinator of this package.

aiokafka (0.14) makes these parts itself, and tells nothing of them: not the member's id, the generation, the metadata
of a commit, or that a background task has ended. To go, it needs an argument for each part, and public names for what
`GroupConsumer` tells.
"""

from collections.abc import Callable, Collection
from typing import Any

from aiokafka import TopicPartition

from penstock.producer.aiokafka_internals import lenient_records
from penstock.producer.aiokafka_internals.bounded_fetch import BoundedConsumer
from penstock.producer.aiokafka_internals.committed_offsets import CheckedCoordinator
from penstock.producer.aiokafka_internals.fetcher import LeanFetcher
from penstock.producer.aiokafka_internals.topic_ids import TopicIds

Jumped = Callable[[TopicPartition, int, int], None]


class GroupConsumer(BoundedConsumer):
    """A member of a group: reads topics by their ids, any batch, and online topics before bulk ones."""

    _coordinator: Any

    def __init__(self, topic_ids: TopicIds, jumped: Jumped, **options: Any) -> None:
        """`jumped` is told a partition, the offset that was asked for and is not there, and where it is read on."""
        super().__init__(**options)
        lenient_records.install()
        self._topic_ids = topic_ids
        self._jumped = jumped

    async def start(self) -> None:
        """Connect. The first steps of the tasks of fetcher and coordinator come after this."""
        await super().start()
        self._fetcher.__class__, self._coordinator.__class__ = LeanFetcher, CheckedCoordinator
        self._fetcher.begin(self._topic_ids, self._jumped)

    @property
    def member_id(self) -> str:
        """Kafka's name of this member; empty before it has one."""
        return str(self._coordinator.member_id)

    @property
    def is_evicted(self) -> bool:
        """Whether the group has told this member that it went on without it, and it has not joined again."""
        return bool(self._coordinator.generation < 0)

    def rejoin(self) -> None:
        """Give all partitions back, and get new ones."""
        self._coordinator.request_rejoin()

    def rejoin_if_stuck(self) -> None:
        """Join the group again if aiokafka's task that reads committed offsets has died, as it does of a denied ACL.

        aiokafka restarts it in a rebalance only; until then some partitions have no position, and every poll fails.
        """
        task = self._coordinator._commit_refresh_task
        if task is not None and task.done():
            self.rejoin()

    async def fetch_committed(self, sources: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        """Offsets and metadata that are committed. aiokafka's public method returns the offset alone.

        Partitions without a commit are left out. Raises KafkaError.
        """
        found: dict[TopicPartition, Any] = await self._coordinator.fetch_committed_offsets(list(sources))
        return {source: (commit.offset, commit.metadata) for source, commit in found.items()}

    def ended_tasks(self) -> dict[str, BaseException | None]:
        """Names of the background tasks that have ended, with their errors. Nothing starts them again."""
        tasks: dict[str, Any] = {
            "the group's membership": self._coordinator._coordination_task,
            "fetches": self._fetcher._fetch_task,
            "metadata": self._client._sync_task,
        }
        ended = {what: task for what, task in tasks.items() if task is not None and task.done()}
        return {what: task.exception() for what, task in ended.items() if not task.cancelled()}
