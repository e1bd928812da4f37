"""Kafka's fetch request and answer, version 11, encoded and decoded in one pass.

aiokafka (0.14) calls a function for each field of each assigned partition, which takes longer than all else that a
worker does for one record. Brokers without this version are asked in aiokafka's own way.
"""

import struct
from io import BytesIO
from typing import Any

from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11

_ANY_REPLICA, _NO_SESSION, _NO_EPOCH, _NO_OFFSET = -1, (0, -1), -1, -1
_HEAD = struct.Struct(">iiiibii")  # replica, wait, least and most bytes, isolation level, session and its epoch
_ASKED = struct.Struct(">iiqqi")  # partition, leader's epoch, offset, the log's start, most bytes
_ANSWER = struct.Struct(">ihi")  # throttle time, error, session
_ANSWERED = struct.Struct(">ihqqqi")  # partition, error, three offsets of its log, aborted transactions
_ABORTED = struct.Struct(">qq")  # producer, first offset
_RECORDS = struct.Struct(">ii")  # preferred replica, bytes
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")


class FetchMessage(FetchRequest):  # type: ignore[misc]  # aiokafka has no type information
    """A request for records of many partitions, as aiokafka's, but for its cost."""

    def build(self, request_class: type) -> Any:
        """Called by aiokafka with the newest version that the broker and aiokafka know."""
        return _Request(self) if request_class is FetchRequest_v11 else super().build(request_class)


class _Answer(FetchResponse_v11):  # type: ignore[misc]  # as above
    """Records by partition. Partitions without records and errors are left out; their watermarks are not needed."""

    @classmethod
    def decode(cls, data: BytesIO) -> "_Answer":
        """Called with the bytes behind the header. Raises struct.error if they end early."""
        raw = data.read()
        throttle_ms, error, session = _ANSWER.unpack_from(raw)
        (num_topics,) = _COUNT.unpack_from(raw, _ANSWER.size)
        at = _ANSWER.size + _COUNT.size
        topics = []
        for _ in range(num_topics):
            topic, at = _text(raw, at)
            partitions, at = _partitions(raw, at)
            topics.append((topic, partitions))
        return cls(throttle_ms, error, session, topics)


class _Request(FetchRequest_v11):  # type: ignore[misc]  # as above
    RESPONSE_TYPE = _Answer

    def __init__(self, asked: FetchMessage) -> None:
        bounds = asked._max_wait_ms, asked._min_bytes, asked._max_bytes, asked._isolation_level
        super().__init__(_ANY_REPLICA, *bounds, *_NO_SESSION, asked.topics, [], asked._rack_id)

    def encode(self) -> bytes:
        """The bytes behind the header."""
        bounds = self.max_wait_time, self.min_bytes, self.max_bytes, self.isolation_level
        parts = [_HEAD.pack(_ANY_REPLICA, *bounds, *_NO_SESSION), _COUNT.pack(len(self.topics))]
        for topic, partitions in self.topics:
            parts += [_encoded(topic), _COUNT.pack(len(partitions))]
            parts += [_ASKED.pack(number, _NO_EPOCH, at, _NO_OFFSET, most) for number, at, most in partitions]
        parts += [_COUNT.pack(len(self.forgotten_topics_data)), _encoded(self.rack_id)]
        return b"".join(parts)


def _partitions(raw: bytes, at: int) -> tuple[list[tuple[Any, ...]], int]:
    """The partitions of one topic that have records or an error, and where the next topic begins."""
    (count,) = _COUNT.unpack_from(raw, at)
    at += _COUNT.size
    found: list[tuple[Any, ...]] = []
    for _ in range(count):
        number, error, watermark, stable, start, num_aborted = _ANSWERED.unpack_from(raw, at)
        at += _ANSWERED.size
        aborted = []
        for _ in range(num_aborted):  # -1 for none
            aborted.append(_ABORTED.unpack_from(raw, at))
            at += _ABORTED.size
        replica, num_bytes = _RECORDS.unpack_from(raw, at)
        at += _RECORDS.size
        end = at + max(0, num_bytes)
        if error or num_bytes > 0:
            found.append((number, error, watermark, stable, start, aborted, replica, raw[at:end]))
        at = end
    if at > len(raw):
        raise struct.error("The records of the last partition are incomplete.")
    return found, at


def _text(raw: bytes, at: int) -> tuple[str, int]:
    """A string, and where it ends."""
    (length,) = _LENGTH.unpack_from(raw, at)
    at += _LENGTH.size
    if length < 0:
        raise struct.error("A topic has no name.")
    return raw[at : at + length].decode(), at + length


def _encoded(text: str) -> bytes:
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw
