"""Sends records, few at a time, and counts those that the broker refuses."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from penstock.producer.caller_errors import KafkaUnreachable
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.headers import Headers

_MAX_UNSENT, _MAX_UNSENT_BYTES = 500, 8 * 1024 * 1024


class RecordSender:
    """Made by `open_sender`. `send` waits while many records are on their way.

    Methods raise KafkaUnreachable when no record was settled for the cluster's `connect_timeout_s`.
    """

    def __init__(self, outbox: Outbox, cluster: KafkaCluster) -> None:
        self.refused: Counter[str] = Counter()  # records by topic
        self._first_errors: dict[str, KafkaError] = {}  # by topic
        self._outbox = outbox
        self._cluster = cluster
        self._num_done = 0
        self._partitions: dict[str, int] = {}
        self._unsent = self._unsent_bytes = 0

    async def send_alike(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send to the partition of this number, or its remainder: whatever rule chose it, equal keys stay together."""
        try:
            if topic not in self._partitions:
                async with self._cluster.patience():
                    self._partitions[topic] = await self._outbox.partitions(topic)
        except KafkaError as error:  # the topic is denied, gone, or was never there
            self._refuse(topic, error)
            return
        await self.send(topic, partition % self._partitions[topic], key, value, headers)

    async def send(self, topic: str, partition: int | None, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Send to a partition, or to that of the key."""

        def done(records: Sequence[Any], error: KafkaError | None) -> None:
            self._num_done += len(records)
            if error is not None:
                self._refuse(topic, error)

        self._outbox.put(topic, partition, [OutRecord(key, value, headers, done)])
        self._unsent += 1
        self._unsent_bytes += len(value or b"")
        if self._unsent >= _MAX_UNSENT or self._unsent_bytes >= _MAX_UNSENT_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Wait until each record is acknowledged or refused."""
        is_flushed = False
        while not is_flushed:
            is_flushed = await self._flush_some()
        self._unsent = self._unsent_bytes = 0

    async def _flush_some(self) -> bool:
        """Whether all records are settled; else some have been since the call."""
        num_before = self._num_done
        try:
            async with self._cluster.patience():
                await self._outbox.flush()
        except KafkaUnreachable:
            if self._num_done == num_before:
                raise
            return False
        return True

    def reason(self, topic: str) -> str:
        """A sentence: why the first record that was refused was."""
        match self._first_errors[topic]:
            case TopicAuthorizationFailedError():
                return "Kafka denies it: the user needs the ACL WRITE on the topic."
            case UnknownTopicOrPartitionError():
                return "There is no such topic or partition."
            case error:
                return f"The first error: {error}"

    def _refuse(self, topic: str, error: KafkaError) -> None:
        self.refused[topic] += 1
        self._first_errors.setdefault(topic, error)


@asynccontextmanager
async def open_sender(cluster: KafkaCluster, *, execute: bool) -> AsyncIterator[RecordSender | None]:
    """Connect, and log that the broker is waited for. None in a dry run, which needs no right to write.

    Raises KafkaUnreachable and KafkaRefused.
    """
    if not execute:
        yield None
        return
    outbox = Outbox(cluster, client_id="penstock-replay")
    await outbox.start()
    try:
        yield RecordSender(outbox, cluster)
    finally:
        await outbox.stop()
