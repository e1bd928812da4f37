"""The partitions that the group has assigned to this member, from their assignment to their revocation."""

import asyncio
import contextlib
from collections.abc import Mapping

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError

from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer
from penstock.producer.aiokafka_internals.topic_ids import TopicIds
from penstock.worker.kafka.progress.committed_progress import take_over
from penstock.worker.kafka.progress.offsets import PartitionOwner

_IDLE = "The topic has fewer partitions than the group has members. Add partitions, or run fewer members."

log = structlog.get_logger("penstock.consumer")


class Assignment:
    """Opens each partition once its owner has acquired it, and pauses topics. Called on the event loop only.

    aiokafka's `pause` discards what was fetched, and a rebalance loses its flags.
    """

    def __init__(self, topics: Mapping[str, bool], client_id: str) -> None:
        """`topics`: whether the records of each are bulk. `client_id`: of this member, for the log."""
        self.ready = asyncio.Event()  # set while partitions are assigned, or none to a spare member, and some are open
        # Of open partitions: after the last record handed out, or where the assignment begins.
        self.next_offsets: dict[TopicPartition, int] = {}
        self.topic_ids = TopicIds()
        self._online = [topic for topic, is_bulk in topics.items() if not is_bulk] or list(topics)
        self._client_id = client_id
        self._paused: set[str] = set()  # topics
        self._open_sources: set[TopicPartition] = set()  # the others must not be read yet
        self._opening: asyncio.Task[None] | None = None
        self._is_idle = False  # it has no partition of an online topic

    @property
    def is_paused(self) -> bool:
        """Whether any topic is paused."""
        return bool(self._paused)

    def pause(self, consumer: GroupConsumer, topic: str) -> None:
        """Stop fetching a topic until `resume`."""
        if topic not in self._paused:
            self._paused.add(topic)
            consumer.pause(*_partitions(consumer, topic))

    def resume(self, consumer: GroupConsumer, topic: str) -> None:
        """Fetch the open partitions of a paused topic again."""
        if topic in self._paused:
            self._paused.remove(topic)
            consumer.resume(*self._open_sources.intersection(_partitions(consumer, topic)))

    def open(self, consumer: GroupConsumer, owner: PartitionOwner, sources: set[TopicPartition]) -> None:
        """Partitions were assigned. None is read before a task has opened it."""
        is_idle = all(source.topic not in self._online for source in sources)
        is_idle = is_idle and any(consumer.partitions_for_topic(topic) for topic in self._online)
        if is_idle and not self._is_idle:
            log.warning("member_idle", member=self._client_id, topic=self._online[0], reason=_IDLE)
        self._is_idle = is_idle
        self._paused.clear()
        consumer.pause(*sources)
        self._opening = asyncio.create_task(self._open(consumer, owner, sources))

    async def close(self) -> None:
        """Partitions are being revoked. None is opened after this."""
        self.ready.clear()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        self.next_offsets.clear()
        self.topic_ids.forget_unknown()
        self._open_sources.clear()

    def go_back(self, consumer: GroupConsumer) -> None:
        """Set each open partition's position to its next offset: a poll has failed and may have moved it further."""
        for source, offset in self.next_offsets.items():
            with contextlib.suppress(IllegalStateError):  # a rebalance came in between, and with it new positions
                consumer.seek(source, offset)

    def check(self) -> None:
        """Raise the error that ended the opening of partitions, if one did."""
        if self._opening is not None and self._opening.done() and not self._opening.cancelled():
            self._opening.result()

    def cancel(self) -> None:
        """Open no more partitions: the member leaves the group."""
        if self._opening is not None:
            self._opening.cancel()

    async def _open(self, consumer: GroupConsumer, owner: PartitionOwner, sources: set[TopicPartition]) -> None:
        """Read on where the partitions' last owners have committed.

        The topics' ids are read before that: if one is created again afterwards, brokers do not know the id.
        """
        while True:
            topics = await self.topic_ids.read(consumer.client, {source.topic for source in sources})
            known = {source for source in sources if source.topic in topics}
            acquired = set(map(TopicPartition._make, await owner.acquire(set(known))))
            committed = await take_over(consumer, acquired, self.topic_ids.of, owner.own_mark)
            with contextlib.suppress(IllegalStateError):  # revoked meanwhile: this task is about to be cancelled
                for source, progress in committed.items():
                    consumer.seek(source, progress.offset)
                    self.next_offsets[source] = progress.offset
                owner.acquired(set(acquired), committed)
                self._open_sources |= acquired
                consumer.resume(*[source for source in acquired if source.topic not in self._paused])
                self.ready.set()
            sources = sources - acquired
            if not sources:
                return


def _partitions(consumer: GroupConsumer, topic: str) -> list[TopicPartition]:
    return [source for source in consumer.assignment() if source.topic == topic]
