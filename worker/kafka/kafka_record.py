"""A record as the consumer hands it out."""

from collections.abc import Sequence
from typing import Protocol

NO_TOPIC_ID = bytes(16)  # of topics of brokers before Kafka 2.8


class KafkaRecord(Protocol):
    """The part of aiokafka's ConsumerRecord that the worker uses."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Unix time, ms
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
