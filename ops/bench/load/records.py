"""Whole topics of records by librdkafka: it shares no code with the worker and reads a million in seconds."""

import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

Headers = Sequence[tuple[str, bytes]]
Partition = tuple[str, int]
Position = tuple[Partition, int]

_AT_ONCE, _POLL_S, _PATIENCE_S = 2_000, 1.0, 60.0
_OPTIONS = {
    "group.id": "unused",  # librdkafka asks for one; nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # What is fetched is unpacked at once, and a bomb of some kilobytes has 17 MiB.
    "fetch.message.max.bytes": 512 << 10,
    "fetch.max.bytes": 4 << 20,
    "queued.max.messages.kbytes": 32 << 10,
    "log_level": 0,
}


class Record(NamedTuple):
    """A Kafka record."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def position(self) -> Position:
        return (self.topic, self.partition), self.offset


def read_topics(servers: str, topics: Sequence[str], isolation: str = "read_uncommitted") -> Generator[Record]:
    """Every record of these topics, each partition in its order. Blocks.

    It ends when nothing is written any more: while a partition is written to twice a second, its end is never reached.
    """
    consumer = Consumer({"bootstrap.servers": servers, "isolation.level": isolation, **_OPTIONS})
    try:
        known = consumer.list_topics(timeout=_PATIENCE_S).topics
        left = {(topic, number) for topic in topics if topic in known for number in known[topic].partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in left])
        num_idle = 0
        while left:
            messages = consumer.consume(_AT_ONCE, _POLL_S)
            num_idle = 0 if messages else num_idle + 1
            if num_idle * _POLL_S > _PATIENCE_S:
                raise TimeoutError(f"No record and no end of {sorted(left)} for {_PATIENCE_S:.0f} s.")
            left -= {(one.topic(), one.partition()) for one in messages if _is_end(one)}
            yield from (_record(one) for one in messages if one.error() is None)
    finally:
        consumer.close()


def _is_end(message: Any) -> bool:
    """Whether it says that its partition has no more. Raises KafkaException for another error."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return error is not None


def topic_ids(servers: str, topics: Sequence[str]) -> dict[str, bytes]:
    """The ids of topics, 16 bytes each."""
    admin = AdminClient({"bootstrap.servers": servers})  # its answers end with it
    found = admin.describe_topics(TopicCollection(list(topics)))
    ids = {topic: described.result(_PATIENCE_S).topic_id for topic, described in found.items()}
    halves = {topic: (one.get_most_significant_bits(), one.get_least_significant_bits()) for topic, one in ids.items()}
    return {topic: struct.pack(">qq", *pair) for topic, pair in halves.items()}


def _record(message: Any) -> Record:
    return Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or (),
    )
