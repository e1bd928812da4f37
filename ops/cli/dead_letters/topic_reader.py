"""Reads ranges of topics once, up to their present ends, a fetch at a time: for commands that look at records."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition, errors

from penstock.producer.aiokafka_internals import lenient_records
from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.aiokafka_internals.bounded_fetch import BoundedConsumer
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import BACKOFF_MS, connect, disconnect

_POLL_MS = 500
_STOP_S = 2.0
_FETCH_WAIT_MS = 10  # the records are there; a fetch that waits holds up the next partition's offsets
_FETCH_BYTES = 4 * 1024 * 1024
_POLL_RECORDS = 4096  # a small batch may unpack to half a million


class TopicReader:
    """Made by `open_reader`. It belongs to no group and commits nothing.

    Methods raise KafkaUnreachable when nothing has come from the broker for the cluster's `connect_timeout_s`.
    """

    def __init__(self, cluster: KafkaCluster, consumer: BoundedConsumer) -> None:
        self._cluster = cluster
        self._consumer = consumer

    async def num_partitions(self, topic: str) -> int | None:
        """Number of partitions of a topic; None if there is no such topic. Creates none.

        Raises KafkaRefused if Kafka denies it.
        """
        admin = FailoverAdmin(**self._cluster.arguments)
        try:
            async with self._cluster.patience():
                await admin.start()
                return await admin.num_partitions(topic)
        except errors.UnknownTopicOrPartitionError:
            return None
        except errors.TopicAuthorizationFailedError as error:
            raise _denied(topic) from error
        finally:
            await admin.close()

    async def end(self, topic: str, partition: int) -> int:
        """The offset after the last record of a partition."""
        source = TopicPartition(topic, partition)
        self._consumer.assign([source])
        async with self._cluster.patience():
            return int((await self._consumer.end_offsets([source]))[source])

    async def ends(self, topic: str, num_partitions: int) -> Sequence[int]:
        """The offset after the last record of each partition."""
        sources = [TopicPartition(topic, partition) for partition in range(num_partitions)]
        self._consumer.assign(sources)
        self._consumer.pause(*sources)  # none of their records is wanted
        async with self._cluster.patience():
            found = await self._consumer.end_offsets(sources)
        return [int(found[source]) for source in sources]

    async def records(self, topic: str, partition: int, first: int = 0, last: int | None = None) -> AsyncGenerator[Any]:
        """The records of a partition from offset `first` to `last`, both included, or to its present end.

        Raises KafkaRefused if Kafka denies them.
        """
        source = TopicPartition(topic, partition)
        end = await self.end(topic, partition)
        async with self._cluster.patience():
            begin = (await self._consumer.beginning_offsets([source]))[source]
        if last is not None:
            end = min(end, last + 1)
        self._consumer.seek(source, max(first, begin))
        while await self._consumer.position(source) < end:
            for record in await self._fetched(source):
                if record.offset >= end:
                    return
                if record.offset >= first:  # a compressed batch begins before it
                    yield record

    async def _fetched(self, source: TopicPartition) -> Sequence[Any]:
        """The next records of a partition that has some. An aborted transaction may leave none, and moves on."""
        position = await self._consumer.position(source)
        polled: dict[TopicPartition, Sequence[Any]] = {}
        try:
            async with self._cluster.patience():
                while source not in polled and await self._consumer.position(source) == position:
                    polled = await self._consumer.getmany(source, timeout_ms=_POLL_MS, max_records=_POLL_RECORDS)
            return polled.get(source, ())
        except errors.TopicAuthorizationFailedError as error:
            raise _denied(source.topic) from error


@asynccontextmanager
async def open_reader(cluster: KafkaCluster) -> AsyncIterator[TopicReader]:
    """Connect, and log that the broker is waited for. Raises KafkaUnreachable and KafkaRefused."""
    lenient_records.install()  # a record that this command cannot read must not end it

    def make() -> BoundedConsumer:
        return BoundedConsumer(
            **cluster.arguments,
            client_id="penstock-reader",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            retry_backoff_ms=BACKOFF_MS,
        )

    consumer = await connect(cluster, make)
    try:
        yield TopicReader(cluster, consumer)
    finally:
        await disconnect(consumer, _STOP_S)


def _denied(topic: str) -> KafkaRefused:
    return KafkaRefused(f"Kafka denies {topic}. Its user needs the ACL READ on the topic.")
