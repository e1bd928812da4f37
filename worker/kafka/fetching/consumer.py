"""The worker's membership in the consumer group. The constraints of aiokafka (0.14) are dealt with here:

- A position moves when records are handed out, not when they are done.
- A consumer that does not poll for max_poll_interval_ms leaves the group.
- An error of one partition discards what the same `getmany` had taken of the others, whose positions have moved.
- `stop` calls no rebalance listener. Commits during a rebalance fail, as they should.
- Heartbeats run on the event loop, so nothing here may block it.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import connect, disconnect, watch
from penstock.worker.kafka.fetching.assignment import Assignment
from penstock.worker.kafka.fetching.consumer_watch import ConsumerWatch
from penstock.worker.kafka.fetching.group import client_id
from penstock.worker.kafka.fetching.group_member import GroupMember, make_member
from penstock.worker.kafka.fetching.rebalance_listener import Rebalanced, RebalanceListener
from penstock.worker.kafka.fetching.skipped_offsets import SkippedOffsets
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.kafka.partition_names import name, names
from penstock.worker.kafka.progress.committed_progress import read_committed
from penstock.worker.kafka.progress.end_offsets import EndOffsets, seen_ends
from penstock.worker.kafka.progress.offsets import PartitionOwner, PartitionProgress, Source
from penstock.worker.kafka.progress.progress_commits import ProgressCommits
from penstock.worker.stop_signal import watched

_RETRY_S = 1.0

log = structlog.get_logger("penstock.consumer")

Received = Callable[[Sequence[KafkaRecord], bytes], None]


class Consumer:
    """Polls at all times, pauses topics for backpressure, and commits the offsets that it is given."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: Mapping[str, bool],
        member: GroupMember,
        *,
        received: Received,
        revoked: Rebalanced,
    ) -> None:
        """Both callbacks run on the event loop.

        Args:
            topics: whether the records of each are bulk.
            received: gets the records of one partition, in their order, before the assignment can change; and the id
                of their topic.
            revoked: finishes or abandons the records of the given partitions, within the member's `drain_s`.
        """
        self._partition_owner: PartitionOwner | None = None
        self.topics = topics
        self._cluster = cluster
        self._member = member
        self._received = received
        self._revoked = revoked
        self._consumer: GroupConsumer | None = None
        self._watch = ConsumerWatch(topics)
        self._watching: list[asyncio.Task[None]] = []
        self._has_joined = False  # once or more often
        self._assignment = Assignment(topics, client_id(member.worker))
        self.assigned = self._assignment.ready  # an event
        self._skipped = SkippedOffsets(topics)
        self.num_skipped: Mapping[tuple[str, ...], int] = self._skipped.counts  # offsets, by topic and cause
        self._ends = EndOffsets()  # when `is_at_end` last asked
        self._commits = ProgressCommits()

    def serve(self, owner: PartitionOwner) -> None:
        """Hand partitions to this owner. Called once, before `start`."""
        self._partition_owner = owner

    async def start(self) -> None:
        """Join the group. Waits for the broker without end, and logs that it does."""
        topic_ids = self._assignment.topic_ids
        handed = self._cluster, self._member, topic_ids, self._on_jumped
        make = functools.partial(make_member, *handed)
        self._consumer = await connect(self._cluster, make)
        self._consumer.subscribe(list(self.topics), listener=RebalanceListener(self._on_revoked, self._on_assigned))
        watching = watch(self._consumer), self._watch.run(self._consumer)
        recreated = topic_ids.watch(self._consumer.client, self._on_recreated)
        self._watching = [watched(one) for one in (*watching, recreated)]

    async def stop(self, timeout_s: float) -> None:
        """Leave the group, within `timeout_s`. Commits nothing."""
        for task in self._watching:
            task.cancel()
        self._assignment.cancel()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await disconnect(consumer, timeout_s)

    async def poll(self, timeout_ms: int) -> None:
        """Hand out everything that was fetched. Must be called at all times, also while paused, to stay a member.

        The fetch sizes bound the number of records: aiokafka fetches nothing more from a broker while part of its last
        answer is left.

        Raises KafkaRefused if this member may not join the group, or not open transactions. A member that has joined
        waits for these ACLs to return.
        """
        self._assignment.check()
        try:
            self._hand_out(await self._joined.getmany(timeout_ms=timeout_ms))
        except KafkaError as error:
            if isinstance(error, GroupAuthorizationFailedError) and not self._has_joined:
                reason = f"Kafka denies the group {self._member.group_id} to this worker. It needs the ACL READ on it."
                raise KafkaRefused(reason) from error
            log.warning("poll_failed", error=repr(error), retry_s=_RETRY_S)
            if isinstance(error, TopicAuthorizationFailedError):
                self._watch.refused(self._joined, error.args)
            self._assignment.go_back(self._joined)
            self._joined.rejoin_if_stuck()
            await asyncio.sleep(_RETRY_S)
            await self._poll_each()

    async def _poll_each(self) -> None:
        """Hand out what was fetched, one partition at a time, so that one unreadable partition stops no other."""
        for source in self._joined.assignment():
            try:
                self._hand_out(await self._joined.getmany(source, timeout_ms=0))
            except KafkaError as error:
                log.warning("partition_unreadable", partition=name(source), error=repr(error))

    def _hand_out(self, polled: Mapping[TopicPartition, list[KafkaRecord]]) -> None:
        """Runs in the same step of the event loop in which `getmany` returns.

        Records kept over an `await` could outlive their assignment, and be mistaken for records of the next one.
        """
        for source, records in polled.items():
            self._assignment.next_offsets[source] = records[-1].offset + 1
            self._received(records, self._assignment.topic_ids.of(source.topic))

    def pause(self, topic: str) -> None:
        """Stop fetching a topic until `resume`. `poll` must go on; it hands out nothing of the topic."""
        self._assignment.pause(self._joined, topic)

    def resume(self, topic: str) -> None:
        """Fetch a paused topic again."""
        self._assignment.resume(self._joined, topic)

    async def commit(self, offsets: Mapping[Source, PartitionProgress]) -> bool:
        """Commit progress. False when the group is rebalancing or the broker is away: try again, unless overtaken."""
        if self._consumer is None:  # stopped while a revocation drains
            return False
        return await self._commits.commit(self._consumer, offsets)

    @property
    def was_overtaken(self) -> bool:
        """Whether the last commit failed because this member may commit no more before its next assignment."""
        return self._consumer is None or self._commits.was_overtaken

    async def is_at_end(self) -> bool:
        """Whether the assigned partitions have been handed out up to their present ends. Waits for a broker."""
        await self._ends.refresh(self._joined)
        return self.assigned.is_set() and await self._ends.are_reached(self._joined)

    @property
    def knows_topics(self) -> bool:
        """Whether the brokers know all topics. Partitions of the others are still to be assigned."""
        return all(self._joined.partitions_for_topic(topic) for topic in self.topics)

    def last_ends(self) -> dict[Source, int]:
        """The ends of the assigned partitions as the last fetch of each saw them. Does not wait."""
        return {} if self._consumer is None else seen_ends(self._consumer)

    @property
    def member_id(self) -> str:
        """Kafka's name of this member; empty before it has one."""
        return "" if self._consumer is None else self._consumer.member_id

    @property
    def is_evicted(self) -> bool:
        """Whether the group went on without this member: others answer the records that it has."""
        return self._consumer is not None and self._consumer.is_evicted

    @property
    def waits_for(self) -> str:
        """Why no record of the assignment can come; empty if they can, or if this member is a spare one."""
        if not self.member_id:
            return "not in the consumer group"
        return self.denied or ("" if self.assigned.is_set() else "its partitions are being assigned")

    @property
    def denied(self) -> str:
        """The topics that Kafka denies to this member, as a sentence; empty if it denies none."""
        return f"Kafka denies {' and '.join(sorted(self._watch.denied))}" if self._watch.denied else ""

    @property
    def num_partitions(self) -> int:
        """Number of assigned partitions."""
        return len(self._joined.assignment())

    @property
    def is_paused(self) -> bool:
        """Whether any topic is paused."""
        return self._assignment.is_paused

    @property
    def _joined(self) -> GroupConsumer:
        if self._consumer is None:
            raise RuntimeError("The consumer was used before start or after stop. This is a bug.")
        return self._consumer

    async def _on_revoked(self, sources: set[TopicPartition]) -> None:
        await self._assignment.close()
        if not sources:
            return
        log.info("partitions_revoked", partitions=names(sources))
        for topic in self.topics:
            self.pause(topic)
        await self._revoked(sources)
        await self._owner.release(sources)

    async def _on_assigned(self, sources: set[TopicPartition]) -> None:
        """Runs before any record of the new assignment can come. Must not wait: the member sends no heartbeats here."""
        if self._consumer is None:  # it is leaving, and had begun to join again
            return
        log.info("partitions_assigned", partitions=names(sources))
        self._has_joined = True
        self._assignment.open(self._consumer, self._owner, sources)

    def _on_jumped(self, source: TopicPartition, asked: int, begins: int) -> None:
        """Kafka does not have the offset that was asked for. The partition is read from another one."""
        if source not in self._assignment.next_offsets:  # it was revoked
            return
        self._assignment.next_offsets[source] = begins
        if begins < asked:
            log.warning("log_truncated", partition=name(source), position=asked, begins_at=begins)
            return
        self._skipped.note(source, asked, begins, "deleted" if asked else "no_commit")
        self._owner.skipped(source, asked, begins)

    def _on_recreated(self, topic: str) -> None:
        """The topic was deleted and created again: all members read the new one from its beginning.

        The event is logged with the new id. A rebalance may come first, as the topic was gone for a while.
        """
        ends, positions = seen_ends(self._joined), self._assignment.next_offsets
        for source in sorted(source for source in positions if source.topic == topic):
            self._skipped.note(source, positions[source], ends.get(source, 0), "recreated")
        self.rejoin()

    async def committed(self, source: TopicPartition) -> PartitionProgress:
        """Committed progress of a partition. Waits for a broker."""
        return (await read_committed(self._joined, {source}, self._assignment.topic_ids.of))[source]

    def rejoin(self) -> None:
        """Give all partitions back, and get new ones: another worker commits one of them."""
        self._joined.rejoin()

    @property
    def _owner(self) -> PartitionOwner:
        if self._partition_owner is None:
            raise RuntimeError("The consumer has no owner of its partitions. This is a bug.")
        return self._partition_owner
