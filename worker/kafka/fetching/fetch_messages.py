"""Kafka's fetch request and answer, versions 11 and 13, encoded and decoded in one pass.

aiokafka (0.14) calls a function for each field of each assigned partition, which takes longer than all else that a
worker does for one record. Version 13 names topics by their ids: a topic that was deleted and created again is not read
on from the position in the old one. Brokers that know neither are asked in aiokafka's own way.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import CompactString, UnsignedVarInt32

from penstock.worker.kafka.fetching.topic_ids import TopicIds
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID

OUT_OF_RANGE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 1, 100, 103  # errors
_UNKNOWN_TOPIC = 3  # an error of which aiokafka asks for metadata anew
_ANY_REPLICA, _NO_SESSION, _NO_EPOCH, _NO_OFFSET = -1, (0, -1), -1, -1
_HEAD = struct.Struct(">iiiibii")  # replica, wait, least and most bytes, isolation level, session and its epoch
_ASKED = struct.Struct(">iiqqi")  # partition, leader's epoch, offset, the log's start, most bytes
_ASKED_BY_ID = struct.Struct(">iiqiqib")  # the same, with the last record's epoch after the offset; no tags
_ANSWER = struct.Struct(">ihi")  # throttle time, error, session
_ANSWERED = struct.Struct(">ihqqq")  # partition, error, three offsets of its log
_ABORTED = struct.Struct(">qq")  # producer, first offset
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_ID_BYTES = len(NO_TOPIC_ID)


class FetchFault(NamedTuple):
    """A partition that a broker has not read, and why."""

    topic: str
    partition: int
    offset: int  # that was asked for
    error: int


class FetchMessage(FetchRequest):  # type: ignore[misc]  # aiokafka has no type information
    """A request for records of many partitions, as aiokafka's, but for its cost and for the ids."""

    def __init__(self, *bounds: int, topics: Sequence[Any], rack_id: str = "", topic_ids: TopicIds) -> None:
        """`bounds` are aiokafka's: wait, least and most bytes, isolation level."""
        super().__init__(*bounds, topics, rack_id=rack_id)
        self.faults: list[FetchFault] = []  # of the answer, once it is decoded
        self._ids = {topic: topic_ids.of(topic) for topic, _ in topics}

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Called by aiokafka with the versions that the broker knows."""
        oldest, newest = versions.get(self.API_KEY, (0, 0))
        if oldest <= _RequestById.API_VERSION <= newest and NO_TOPIC_ID not in self._ids.values():
            return _RequestById(self)
        return super().prepare(versions)

    def build(self, request_class: type) -> Any:
        """Called by aiokafka with the newest version that the broker and aiokafka know."""
        return _Request(self) if request_class is FetchRequest_v11 else super().build(request_class)

    def note(self, topic: str, partition: int, error: int) -> None:
        """A partition has an error."""
        for number, offset, _ in dict(self.topics).get(topic, ()):
            if number == partition:
                self.faults.append(FetchFault(topic, partition, offset, error))


class _Request(FetchRequest_v11):  # type: ignore[misc]  # as above
    def __init__(self, asked: FetchMessage) -> None:
        bounds = asked._max_wait_ms, asked._min_bytes, asked._max_bytes, asked._isolation_level
        super().__init__(_ANY_REPLICA, *bounds, *_NO_SESSION, asked.topics, [], asked._rack_id)
        self.RESPONSE_TYPE = _Reader(asked)

    def encode(self) -> bytes:
        """The bytes behind the header."""
        parts = [self._head(), _COUNT.pack(len(self.topics))]
        for topic, partitions in self.topics:
            name = topic.encode()
            parts += [_LENGTH.pack(len(name)), name, _COUNT.pack(len(partitions))]
            parts += [_ASKED.pack(number, _NO_EPOCH, at, _NO_OFFSET, most) for number, at, most in partitions]
        rack = self.rack_id.encode()
        parts += [_COUNT.pack(len(self.forgotten_topics_data)), _LENGTH.pack(len(rack)), rack]
        return b"".join(parts)

    def _head(self) -> bytes:
        bounds = self.max_wait_time, self.min_bytes, self.max_bytes, self.isolation_level
        return _HEAD.pack(_ANY_REPLICA, *bounds, *_NO_SESSION)


class _RequestById(_Request):
    API_VERSION, FLEXIBLE_VERSION = 13, True

    def __init__(self, asked: FetchMessage) -> None:
        super().__init__(asked)
        self._ids = asked._ids
        self.RESPONSE_TYPE = _ReaderById(asked)

    def encode(self) -> bytes:
        """The bytes behind the header."""
        parts = [self._head(), _compact(len(self.topics))]
        for topic, partitions in self.topics:
            parts += [self._ids[topic], _compact(len(partitions))]
            for number, at, most in partitions:
                parts.append(_ASKED_BY_ID.pack(number, _NO_EPOCH, at, _NO_EPOCH, _NO_OFFSET, most, 0))
            parts.append(b"\0")  # no tags
        parts += [_compact(0), CompactString("utf-8").encode(self.rack_id), b"\0"]
        return b"".join(parts)


class _Reader:
    """Decodes the answer to a message: records by partition.

    Partitions without records and errors are left out; their watermarks are not needed.
    """

    def __init__(self, asked: FetchMessage) -> None:
        self._asked = asked

    def decode(self, data: BytesIO) -> FetchResponse_v11:
        """Called by aiokafka with the bytes behind the header. Raises struct.error or IndexError if they end early."""
        raw = data.read()
        throttle_ms, error, session = _ANSWER.unpack_from(raw)
        num_topics, at = self._count(raw, _ANSWER.size)
        topics = []
        for _ in range(num_topics):
            topic, at = self._topic(raw, at)
            partitions, at = self._partitions(topic, raw, at)
            topics.append((topic, partitions))
        return FetchResponse_v11(throttle_ms, error, session, topics)

    def _partitions(self, topic: str, raw: bytes, at: int) -> tuple[list[tuple[Any, ...]], int]:
        """The partitions of one topic that have records or an error, and where the next topic begins."""
        count, at = self._count(raw, at)
        found: list[tuple[Any, ...]] = []
        for _ in range(count):
            number, error, watermark, stable, start = _ANSWERED.unpack_from(raw, at)
            num_aborted, at = self._count(raw, at + _ANSWERED.size)
            aborted = []
            for _ in range(num_aborted):  # -1 for none
                aborted.append(_ABORTED.unpack_from(raw, at))
                at = self._behind(raw, at + _ABORTED.size)
            (replica,) = _COUNT.unpack_from(raw, at)
            num_bytes, at = self._count(raw, at + _COUNT.size)
            end = at + max(0, num_bytes)
            if error:
                self._asked.note(topic, number, error)
                error = _UNKNOWN_TOPIC if error in (UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID) else error
            if error or num_bytes > 0:
                found.append((number, error, watermark, stable, start, aborted, replica, raw[at:end]))
            at = self._behind(raw, end)
        at = self._behind(raw, at)
        if at > len(raw):
            raise struct.error("The records of the last partition are incomplete.")
        return found, at

    def _count(self, raw: bytes, at: int) -> tuple[int, int]:
        """The size of an array or of records, and what is behind it. -1 for none."""
        return _COUNT.unpack_from(raw, at)[0], at + _COUNT.size

    def _topic(self, raw: bytes, at: int) -> tuple[str, int]:
        """A topic's name, and where its partitions begin."""
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if length < 0:
            raise struct.error("A topic has no name.")
        return raw[at : at + length].decode(), at + length

    def _behind(self, raw: bytes, at: int) -> int:
        """The end of a part that ends with tags, in versions that have them."""
        return at


class _ReaderById(_Reader):
    def __init__(self, asked: FetchMessage) -> None:
        super().__init__(asked)
        self._names = {topic_id: topic for topic, topic_id in asked._ids.items()}

    def _count(self, raw: bytes, at: int) -> tuple[int, int]:
        number, at = _varint(raw, at)
        return number - 1, at

    def _topic(self, raw: bytes, at: int) -> tuple[str, int]:
        end = at + _ID_BYTES
        topic = self._names.get(raw[at:end])
        if topic is None:
            raise struct.error("A topic that was not asked for, or its name ends early.")
        return topic, end

    def _behind(self, raw: bytes, at: int) -> int:
        num_tags, at = _varint(raw, at)
        for _ in range(num_tags):
            _, at = _varint(raw, at)
            size, at = _varint(raw, at)
            at += size
        return at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """An unsigned number, seven bits a byte, and where it ends."""
    number, shift = raw[at], 7
    if number < 0x80:
        return number, at + 1
    number &= 0x7F
    while True:
        at += 1
        number |= (raw[at] & 0x7F) << shift
        if raw[at] < 0x80:
            return number, at + 1
        if (shift := shift + 7) > 28:
            raise struct.error("A number is too long.")


def _compact(size: int) -> bytes:
    """The size of an array."""
    return bytes(UnsignedVarInt32.encode(size + 1))
