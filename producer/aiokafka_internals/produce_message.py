"""Kafka's produce request and answer, version 9, encoded and decoded in one pass.

aiokafka (0.14) knows no version above 8, and calls a function for each field. Brokers before Kafka 2.5 are asked in its
own way. To go, it needs a faster codec.
"""

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar

from aiokafka.protocol.produce import ProduceRequest

from penstock.producer.aiokafka_internals.flexible_request import (
    NO_TAGS,
    FlexibleRequest,
    behind_tags,
    behind_text,
    compact,
    varint,
)

_HEAD = struct.Struct(">bhi")  # no transactional id, acknowledgements, time-out
_PARTITION = struct.Struct(">i")
_ANSWERED = struct.Struct(">ihqqq")  # partition, error, first offset, time, the log's start
_FAULT_BYTES = 4  # of a record's fault: its number in the batch
_NULL = 0


class ProduceMessage(ProduceRequest):  # type: ignore[misc]  # aiokafka has no type information
    """A request to write batches outside of transactions, as aiokafka's, but for its cost."""

    def __init__(self, required_acks: int, timeout: int, topics: list[tuple[str, list[tuple[int, bytes]]]]) -> None:
        super().__init__(None, required_acks, timeout, topics)

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Called by aiokafka with the versions that the broker knows."""
        oldest, newest = versions.get(self.API_KEY, (0, 0))
        if oldest <= _Produce.API_VERSION <= newest:
            return _Produce(self._body(), _DECODER)
        return super().prepare(versions)

    def _body(self) -> bytes:
        parts = [_HEAD.pack(_NULL, self._required_acks, self._timeout), compact(len(self._topics))]
        for topic, partitions in self._topics:
            name = topic.encode()
            parts += [compact(len(name)), name, compact(len(partitions))]
            for number, batch in partitions:
                parts += [_PARTITION.pack(number), compact(len(batch)), batch, NO_TAGS]
            parts.append(NO_TAGS)
        parts.append(NO_TAGS)
        return b"".join(parts)


class _Produce(FlexibleRequest):
    API_KEY, API_VERSION = 0, 9


@dataclass(frozen=True, slots=True)
class Produced:
    """An answer as aiokafka reads it, of the last version that it knows."""

    topics: list[tuple[str, list[tuple[Any, ...]]]]
    API_VERSION: ClassVar[int] = 8


class _Decoder:
    """The faults of single records are left out; what the broker says of the batch is there."""

    def decode(self, data: BytesIO) -> Produced:
        raw = data.read()
        num_topics, at = varint(raw, 0)
        topics = []
        for _ in range(num_topics - 1):
            start, at = varint(raw, at)[1], behind_text(raw, at)
            topic = raw[start:at].decode()
            partitions, at = self._partitions(raw, at)
            topics.append((topic, partitions))
        return Produced(topics)

    def _partitions(self, raw: bytes, at: int) -> tuple[list[tuple[Any, ...]], int]:
        count, at = varint(raw, at)
        found: list[tuple[Any, ...]] = []
        for _ in range(count - 1):
            answered = _ANSWERED.unpack_from(raw, at)
            num_faults, at = varint(raw, at + _ANSWERED.size)
            for _ in range(num_faults - 1):  # -1 for null
                at = behind_tags(raw, behind_text(raw, at + _FAULT_BYTES))
            start, at = varint(raw, at)[1], behind_text(raw, at)
            found.append((*answered, (), raw[start:at].decode() or None))
            at = behind_tags(raw, at)
        return found, behind_tags(raw, at)


_DECODER = _Decoder()
