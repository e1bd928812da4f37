"""Sends records, few at a time, and tells how many were sent, skipped, and refused by the broker."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, say
from penstock.producer.errors import KafkaUnreachable
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.headers import Headers

_MAX_UNSENT, _MAX_UNSENT_BYTES = 500, 8 * 1024 * 1024


class RecordSender:
    """Made by `open_sender`. `send` waits while many records are on their way.

    Methods raise KafkaUnreachable when no record was settled for the cluster's `connect_timeout_s`.
    """

    def __init__(self, outbox: Outbox | None, cluster: KafkaCluster) -> None:
        """Without an outbox this is a dry run, which counts what would be sent."""
        self._outbox = outbox
        self._cluster = cluster
        self._sent: Counter[str] = Counter()  # records by topic, those that are refused later included
        self._refused: Counter[str] = Counter()  # of them
        self._first_errors: dict[str, KafkaError] = {}  # by topic
        self.failed: Counter[str] = Counter()  # letters without an answer by error code
        self.skipped: Counter[str] = Counter()  # records or letters by reason
        self._num_done = 0
        self._partitions: dict[str, int] = {}
        self._unsent = self._unsent_bytes = 0

    async def send_alike(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Send to the partition of this number, or its remainder: whatever rule chose it, equal keys stay together."""
        if self._outbox is not None and topic not in self._partitions:
            try:
                async with self._cluster.patience():
                    self._partitions[topic] = await self._outbox.partitions(topic)
            except KafkaError as error:  # the topic is denied, gone, or was never there
                self._sent[topic] += 1
                self._refuse(topic, error)
                return
        await self.send(topic, partition % self._partitions.get(topic, 1), key, value, headers)

    async def send(
        self, topic: str, partition: int | None, key: bytes | None, value: bytes | None, headers: Headers
    ) -> None:
        """Send to a partition, or to that of the key."""

        def done(records: Sequence[Any], error: KafkaError | None) -> None:
            self._num_done += len(records)
            if error is not None:
                self._refuse(topic, error)

        self._sent[topic] += 1
        if self._outbox is None:
            return
        self._outbox.put(topic, partition, [OutRecord(key, value, headers, done)])
        self._unsent += 1
        self._unsent_bytes += len(value or b"")
        if self._unsent >= _MAX_UNSENT or self._unsent_bytes >= _MAX_UNSENT_BYTES:
            await self.flush()

    async def finish(self, sent: str, taken: str) -> int:
        """Wait for the acknowledgements, print what was done, and return the exit code, which is OK for nothing.

        Args:
            sent: the noun of what is sent.
            taken: the noun of what was asked to be sent again or answered.
        """
        await self.flush()
        for topic, count in self._sent.items():
            done = "Would send" if self._outbox is None else "Sent"
            say(f"{done} {_num_of(sent, count - self._refused[topic])} to {topic}.")
        for code, count in self.failed.items():
            say(f"{_num_of(taken, count)} failed again: {code}.", "yellow")
        for reason, count in self.skipped.items():
            say(f"Skipped {_num_of(taken, count)}: {reason}.", "yellow")
        for topic, count in self._refused.items():
            say(f"{topic} refused {_num_of('record', count)}. {self._reason(topic)}", "red")
        if self._outbox is None and self.has_any:
            say("This was a dry run. Add --execute to send.")
        return EXIT_PROBLEM if self._refused or self.failed else EXIT_OK

    @property
    def has_any(self) -> bool:
        """Whether there was anything to send, to fail or to skip."""
        return bool(self._sent or self.failed or self.skipped)

    async def flush(self) -> None:
        """Wait until each record is acknowledged or refused."""
        if (outbox := self._outbox) is None:
            return
        is_flushed = False
        while not is_flushed:
            num_before = self._num_done
            try:
                async with self._cluster.patience():
                    await outbox.flush()
                is_flushed = True
            except KafkaUnreachable:
                if self._num_done == num_before:
                    raise
        self._unsent = self._unsent_bytes = 0

    def _reason(self, topic: str) -> str:
        """A sentence: why the first record that was refused was."""
        match self._first_errors[topic]:
            case TopicAuthorizationFailedError():
                return "Kafka denies it: the user needs the ACL WRITE on the topic."
            case UnknownTopicOrPartitionError():
                return "There is no such topic or partition."
            case error:
                return f"The first error: {error}"

    def _refuse(self, topic: str, error: KafkaError) -> None:
        self._refused[topic] += 1
        self._first_errors.setdefault(topic, error)


@asynccontextmanager
async def open_sender(cluster: KafkaCluster, *, execute: bool) -> AsyncIterator[RecordSender]:
    """Connect, and log that the broker is waited for; not in a dry run, which needs no right to write.

    Raises KafkaUnreachable and KafkaRefused.
    """
    if not execute:
        yield RecordSender(None, cluster)
        return
    outbox = Outbox(cluster, client_id="penstock-replay")
    await outbox.start()
    try:
        yield RecordSender(outbox, cluster)
    finally:
        await outbox.stop()


def _num_of(noun: str, count: int) -> str:
    """`3 records`, `1 reply`, `2 replies`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
