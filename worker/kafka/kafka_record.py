"""A record as the consumer hands it out, with the id of its topic."""

from collections.abc import Sequence
from typing import Protocol

from penstock.producer.aiokafka_internals.topic_ids import NO_TOPIC_ID

__all__ = ["NO_TOPIC_ID", "KafkaRecord"]


class KafkaRecord(Protocol):
    """The part of aiokafka's ConsumerRecord that the worker uses."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # Unix time, ms
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
