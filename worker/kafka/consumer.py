"""The worker's membership in the consumer group. The constraints of aiokafka (0.14) are dealt with here:

- `pause` discards what was fetched, and a rebalance loses its flags.
- A position moves when records are handed out, not when they are done.
- A consumer that does not poll for max_poll_interval_ms leaves the group.
- An error of one partition discards what the same `getmany` had taken of the others, whose positions have moved.
- `stop` calls no rebalance listener. Commits during a rebalance fail, as they should.
- Heartbeats run on the event loop, so nothing here may block it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    OffsetMetadataTooLargeError,
)

from penstock.producer.transport.bounded_fetch import BoundedConsumer
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS, connect, disconnect, watch
from penstock.worker.kafka import commit_metadata, lean_fetcher, lenient_batches
from penstock.worker.kafka.custody import Custody
from penstock.worker.kafka.group import assignor_for, client_id
from penstock.worker.kafka.offsets import PartitionOwner, Progress, Source
from penstock.worker.requests.record import KafkaRecord

_NO_METADATA = "more requests are answered again after a crash, and a record that ends its workers is not quarantined"
_RETRY_S = 1.0
_HEARTBEAT_MS = 1000  # a member learns of a rebalance by its next heartbeat, and all others wait for it until then
_PARTITION_FETCH_BYTES = 256 * 1024  # a larger record still comes, alone
_FETCH_BYTES = 4 * 1024 * 1024  # online partitions come first, so bulk takes the room that they leave

_IDLE = "The topic has fewer partitions than the group has members. Add partitions, or run fewer members."

log = structlog.get_logger("penstock.consumer")

Received = Callable[[Sequence[KafkaRecord]], None]
Rebalanced = Callable[[set[TopicPartition]], Awaitable[None]]


class Consumer:
    """Polls at all times, pauses topics for back-pressure, commits the offsets that it is given."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topics: Sequence[str],
        group_id: str,
        *,
        worker: int,
        revision: str,
        fetch_max_wait_ms: int,
        drain_s: float,
        received: Received,
        revoked: Rebalanced,
    ) -> None:
        """Both callbacks run on the event loop.

        Args:
            worker: the member's number on its machine.
            revision: of the model; members of one group should have the same.
            received: gets the records of one partition, in their order, before the assignment can change.
            revoked: finishes or abandons the records of the given partitions, within `drain_s`.
        """
        self.owner: PartitionOwner | None = None  # set before `start`
        self.isolation_level = "read_uncommitted"  # of requests
        self.topics = topics
        self._cluster = cluster
        self._group_id = group_id
        self._client_id = client_id(worker)
        self._assignor = assignor_for(revision)
        self._drain_s = drain_s
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._received = received
        self._revoked = revoked
        self._consumer: AIOKafkaConsumer | None = None
        self._watching: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None  # of the partitions that were assigned
        self._has_metadata = True  # false if the broker takes none of the size that commits may have
        self._paused: set[str] = set()  # topics
        self._has_joined = False  # once or more often
        self._is_idle = False  # it has no partition of the online topic
        self._next: dict[TopicPartition, int] = {}  # offset after the last record handed out, since the assignment
        self._ends: dict[TopicPartition, int] = {}  # offsets after the last records, when `is_at_end` last asked
        self.assigned = asyncio.Event()  # set once partitions (or none, for a spare member) have been assigned

    async def start(self) -> None:
        """Join the group. Waits for the broker without end, and logs that it does."""
        lenient_batches.install()
        lean_fetcher.install()
        self._consumer = await connect(self._cluster, self._make_consumer)
        self._consumer.subscribe(list(self.topics), listener=_Listener(self._on_revoked, self._on_assigned))
        self._watching = asyncio.create_task(watch(self._consumer))

    async def stop(self, timeout_s: float) -> None:
        """Leave the group, within `timeout_s`. Commits nothing."""
        for task in (self._watching, self._opening):
            if task is not None:
                task.cancel()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await disconnect(consumer, timeout_s)

    async def poll(self, timeout_ms: int) -> None:
        """Hand out everything that was fetched. Must be called at all times, also while paused, to stay a member.

        The fetch sizes bound the number of records: aiokafka fetches nothing more from a broker while part of its last
        answer is left.

        Raises KafkaRefused if this member may not join the group, or not open transactions. A member that has joined
        waits for the ACL of the group to return.
        """
        if self._opening is not None and self._opening.done() and not self._opening.cancelled():
            self._opening.result()
        try:
            self._hand_out(await self._joined.getmany(timeout_ms=timeout_ms))
        except KafkaError as error:
            if isinstance(error, GroupAuthorizationFailedError) and not self._has_joined:
                reason = f"Kafka denies the group {self._group_id} to this worker. It needs the ACL READ on it."
                raise KafkaRefused(reason) from error
            log.warning("poll_failed", error=repr(error), retry_s=_RETRY_S)
            await self._seek_back()
            self._rejoin_if_stuck()
            await asyncio.sleep(_RETRY_S)
            await self._poll_each()

    def _rejoin_if_stuck(self) -> None:
        """Join the group again if aiokafka's task that reads committed offsets has died, as it does of a denied ACL.

        aiokafka restarts it in a rebalance only; until then some partitions have no position, and every poll fails.
        """
        coordinator = self._joined._coordinator
        task = coordinator._commit_refresh_task
        if task is not None and task.done():
            coordinator.request_rejoin()

    async def _poll_each(self) -> None:
        """Hand out what was fetched, one partition at a time, so that one unreadable partition stops no other."""
        for source in self._joined.assignment():
            try:
                self._hand_out(await self._joined.getmany(source, timeout_ms=0))
            except KafkaError as error:
                log.warning("partition_unreadable", partition=_name(source), error=repr(error))

    def _hand_out(self, polled: Mapping[TopicPartition, list[KafkaRecord]]) -> None:
        """Runs in the same step of the event loop in which `getmany` returns.

        Records kept over an `await` could outlive their assignment, and be mistaken for records of the next one.
        """
        for source, records in polled.items():
            self._next[source] = records[-1].offset + 1
            self._received(records)

    async def _seek_back(self) -> None:
        """Set each partition's position to the record after the last handed out. Waits for a broker that is away."""
        for source in self._joined.assignment():
            while True:
                try:
                    offset = self._next.get(source)
                    if offset is None:  # nothing handed out since the assignment: the group's offset, or the beginning
                        offset = await self._joined.committed(source) or 0
                    self._joined.seek(source, offset)
                    break
                except IllegalStateError:
                    break  # a rebalance came in between, and with it new positions
                except KafkaError as error:
                    log.warning("seek_back_failed", partition=_name(source), error=repr(error), retry_s=_RETRY_S)
                    await asyncio.sleep(_RETRY_S)

    def pause(self, topic: str) -> None:
        """Stop fetching a topic until `resume`. `poll` must go on; it hands out nothing of the topic."""
        if topic not in self._paused:
            self._paused.add(topic)
            self._joined.pause(*self._partitions(topic))

    def resume(self, topic: str) -> None:
        """Fetch a paused topic again."""
        if topic in self._paused:
            self._paused.remove(topic)
            self._joined.resume(*self._partitions(topic))

    async def commit(self, offsets: Mapping[Source, Progress]) -> bool:
        """Commit progress. False when the group is rebalancing or the broker is away: try again."""
        try:
            await self._commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit_overtaken_by_rebalance", error=str(error))
            return False
        except KafkaError as error:
            log.warning("commit_failed", error=repr(error))
            return False
        return True

    async def _commit(self, offsets: Mapping[Source, Progress]) -> None:
        commits = {}
        for source, (offset, beyond, custody) in offsets.items():
            metadata = commit_metadata.encode(offset, beyond) + ("" if custody is None else custody.text())
            commits[TopicPartition(*source)] = offset, metadata if self._has_metadata else ""
        try:
            await self._joined.commit(commits)
        except OffsetMetadataTooLargeError:
            log.warning("commit_metadata_refused", consequence=_NO_METADATA)
            self._has_metadata = False
            await self._commit(offsets)

    async def is_at_end(self) -> bool:
        """Whether the assigned partitions have been handed out up to their present ends. Waits for a broker."""
        if await self._has_reached(self._ends):
            self._ends = await self._end_offsets()
        return self.assigned.is_set() and await self._has_reached(self._ends)

    async def _end_offsets(self) -> dict[TopicPartition, int]:
        while True:
            try:
                return dict(await self._joined.end_offsets(list(self._joined.assignment())))
            except KafkaError as error:
                log.warning("end_offsets_failed", error=repr(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)

    async def _has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        try:
            mine = self._joined.assignment()
            return all([await self._joined.position(source) >= end for source, end in ends.items() if source in mine])
        except (IllegalStateError, KafkaError):
            return False  # a rebalance came in between: ask again

    @property
    def member_id(self) -> str:
        """Kafka's name of this member; empty before it has one."""
        # aiokafka has no public name for it.
        return "" if self._consumer is None else str(self._consumer._coordinator.member_id)

    @property
    def num_partitions(self) -> int:
        """How many partitions are assigned."""
        return len(self._joined.assignment())

    @property
    def is_paused(self) -> bool:
        """Whether any topic is paused."""
        return bool(self._paused)

    @property
    def _joined(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("The consumer was used before start or after stop. This is a bug.")
        return self._consumer

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [source for source in self._joined.assignment() if source.topic == topic]

    def _make_consumer(self) -> AIOKafkaConsumer:
        return BoundedConsumer(
            **self._cluster.arguments,
            group_id=self._group_id,
            client_id=self._client_id,
            partition_assignment_strategy=(self._assignor,),
            heartbeat_interval_ms=_HEARTBEAT_MS,
            enable_auto_commit=False,
            fetch_max_wait_ms=self._fetch_max_wait_ms,
            auto_offset_reset="earliest",
            isolation_level=self.isolation_level,
            # A rebalance waits for the drain. A member that takes longer loses its partitions, not its answers.
            rebalance_timeout_ms=int((self._drain_s + 10) * 1000),
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
            retry_backoff_ms=BACKOFF_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    async def _on_revoked(self, sources: set[TopicPartition]) -> None:
        self.assigned.clear()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        self._next.clear()
        if not sources:
            return
        log.info("partitions_revoked", partitions=_names(sources))
        for topic in self.topics:
            self.pause(topic)
        await self._revoked(sources)
        await self._owner.release(sources)

    async def _on_assigned(self, sources: set[TopicPartition]) -> None:
        """Runs before any record of the new assignment can come. Must not wait: the member sends no heartbeats here."""
        log.info("partitions_assigned", partitions=_names(sources))
        online = self.topics[0]
        is_idle = all(source.topic != online for source in sources) and bool(self._joined.partitions_for_topic(online))
        if is_idle and not self._is_idle:
            log.warning("member_idle", member=self._client_id, topic=online, reason=_IDLE)
        self._is_idle = is_idle
        self._paused.clear()  # a rebalance loses the flags
        self._has_joined = True
        self._joined.pause(*sources)
        self._opening = asyncio.create_task(self._open(sources))

    async def _open(self, sources: set[TopicPartition]) -> None:
        """Read on where the partitions' last owners have committed."""
        await self._owner.acquire(sources)
        committed = await self._committed(sources)
        if any(progress.custody is not None for progress in committed.values()):
            ends = await self._end_offsets()
            committed = {source: _taken_over(source, one, ends.get(source, 0)) for source, one in committed.items()}
        with contextlib.suppress(IllegalStateError):  # revoked meanwhile: this task is about to be cancelled
            for source, progress in committed.items():
                self._joined.seek(source, progress.offset)
            self._owner.acquired(committed)
            self._joined.resume(*[source for source in sources if source.topic not in self._paused])
            self.assigned.set()

    async def committed(self, source: TopicPartition) -> Progress | None:
        """What is committed of a partition. Waits for a broker."""
        return (await self._committed({source})).get(source)

    def rejoin(self) -> None:
        """Give all partitions back, and get new ones: another worker commits one of them."""
        self._joined._coordinator.request_rejoin()

    async def _committed(self, sources: set[TopicPartition]) -> dict[TopicPartition, Progress]:
        """What is committed of these partitions. Waits for a broker or a permission that is away."""
        while True:
            try:
                # aiokafka's public method returns the offset alone.
                found = await self._joined._coordinator.fetch_committed_offsets(list(sources))
                break
            except KafkaError as error:
                log.warning("committed_unreadable", error=repr(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
        return {source: _progress(source, commit.offset, commit.metadata) for source, commit in found.items()}

    @property
    def _owner(self) -> PartitionOwner:
        if self.owner is None:
            raise RuntimeError("The consumer has no owner of its partitions. This is a bug.")
        return self.owner


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """Logs what the callbacks raise as a bug; aiokafka swallows it."""

    def __init__(self, revoked: Rebalanced, assigned: Rebalanced) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        try:
            await self._revoked(set(revoked))
        except Exception:
            log.exception("revocation_failed", note="This is a bug.")
            raise

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._assigned(set(assigned))


def _progress(source: TopicPartition, offset: int, metadata: str) -> Progress:
    beyond, mark, custody = metadata.partition(";")
    try:
        progress = Progress(
            offset, commit_metadata.decode(offset, beyond), Custody.parse(mark + custody) if mark else None
        )
    except ValueError as error:
        log.warning("commit_metadata_ignored", partition=_name(source), offset=offset, reason=str(error))
        return Progress(offset)
    if progress.beyond:
        log.info("answered_by_last_owner", partition=_name(source), offset=offset, records=len(progress.beyond))
    return progress


def _taken_over(source: TopicPartition, progress: Progress, end: int) -> Progress:
    if progress.custody is None:
        return progress
    custody = progress.custody.taken_over(progress.offset, end)
    in_doubt = max(0, custody.until - progress.offset)
    if in_doubt:
        log.warning(
            "owner_died", partition=_name(source), offset=progress.offset, records=in_doubt, deaths=custody.deaths
        )
    return progress._replace(custody=custody)


def _names(sources: set[TopicPartition]) -> dict[str, str]:
    """Topic -> its partitions, such as 0-7,9."""
    by_topic: dict[str, list[int]] = {}
    for source in sorted(sources):
        by_topic.setdefault(source.topic, []).append(source.partition)
    return {topic: ranges(partitions) for topic, partitions in by_topic.items()}


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, briefly: 0-7,9."""
    firsts = [n for n in numbers if n - 1 not in numbers]
    lasts = [n for n in numbers if n + 1 not in numbers]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def _name(source: TopicPartition) -> str:
    return f"{source.topic}-{source.partition}"
