"""Kafka's fetch request and answer, versions 12 and 13, encoded and decoded in one pass.

aiokafka (0.14) knows no version above 11, and calls a function for each field of each assigned partition, which takes
longer than all else that a worker does for one record. Version 13 names topics by their ids: a topic that was deleted
and created again is not read on from the position in the old one. Version 12, for those who know no ids and for Kafka
before 3.1, differs in that alone. Brokers before Kafka 2.7 are asked in aiokafka's own way.

To go, it needs version 13 with topic ids (KIP-516), and what `fetch_session.py` says.
"""

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

from aiokafka.protocol.fetch import FetchRequest

from penstock.producer.aiokafka_internals.fetch_session import MOST_BYTES, FetchSession, Offsets
from penstock.producer.aiokafka_internals.flexible_request import (
    NO_TAGS,
    Answer,
    FlexibleRequest,
    behind_tags,
    behind_text,
    compact,
    varint,
)
from penstock.producer.aiokafka_internals.topic_ids import NO_TOPIC_ID, TopicIds

OUT_OF_RANGE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 1, 100, 103  # errors
UNKNOWN_TOPIC = 3  # an error of which aiokafka asks for metadata anew; of a deleted topic, within a session
_ANY_REPLICA, _NO_EPOCH, _NO_OFFSET = -1, -1, -1
_HEAD = struct.Struct(">iiiibii")  # replica, wait, least and most bytes, isolation level, session and its epoch
_ASKED = struct.Struct(">iiqiqib")  # partition, leader's epoch, offset, its epoch, the log's start, most bytes, no tags
_ANSWER = struct.Struct(">ihi")  # throttle time, error, session
_ANSWERED = struct.Struct(">ihqqq")  # partition, error, three offsets of its log
_ABORTED = struct.Struct(">qq")  # producer, first offset
_REPLICA = struct.Struct(">i")
_ID_BYTES = len(NO_TOPIC_ID)


class FetchFault(NamedTuple):
    """A partition that a broker has not read, and why."""

    topic: str
    partition: int
    offset: int  # that was asked for
    error: int


class FetchMessage(FetchRequest):  # type: ignore[misc]  # aiokafka has no type information
    """A request for records of many partitions, as aiokafka's, but for its cost, for the ids and for the session."""

    def __init__(
        self,
        *bounds: int,
        partition_bytes: int,
        rack_id: str = "",
        offsets: Offsets,
        topic_ids: TopicIds,
        session: FetchSession | None = None,
    ) -> None:
        """`bounds` are aiokafka's: wait, least and most bytes, isolation level. `session`: with the broker."""
        super().__init__(*bounds, [], rack_id=rack_id)
        self._partition_bytes = partition_bytes
        self._offsets = offsets
        self.session = session or FetchSession()
        self.faults: list[FetchFault] = []  # of the answer, once it is decoded
        self.ids = {topic: topic_ids.of(topic) for topic in offsets}

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Called by aiokafka with the versions that the broker knows."""
        oldest, newest = versions.get(self.API_KEY, (0, 0))
        if oldest <= _FetchById.API_VERSION <= newest and NO_TOPIC_ID not in self.ids.values():
            return _FetchById(self._body(self.ids), _Answer(self, self.ids, _behind_id))
        if oldest <= _FetchByName.API_VERSION <= newest:
            names = {topic: _name(topic) for topic in self.ids}
            return _FetchByName(self._body(names), _Answer(self, names, behind_text))
        self.session.leave()
        for topic, asked in self._offsets.items():
            self._topics.append((topic, [(number, at, self._partition_bytes) for number, at in asked.items()]))
        request = super().prepare(versions)
        request.RESPONSE_TYPE = _NotedAnswer(self, request.RESPONSE_TYPE)
        return request

    def _body(self, keys: Mapping[str, bytes]) -> bytes:
        """`keys`: by which the version names topics."""
        session, epoch, named = self.session.request(self._offsets)
        max_bytes = min(self._max_bytes, MOST_BYTES) if epoch > 0 else self._max_bytes
        bounds = self._max_wait_ms, self._min_bytes, max_bytes, self._isolation_level
        parts = [_HEAD.pack(_ANY_REPLICA, *bounds, session, epoch), compact(len(named))]
        most = self._partition_bytes
        for topic, asked in named.items():
            parts += [keys[topic], compact(len(asked))]
            for number, at in asked.items():
                parts.append(_ASKED.pack(number, _NO_EPOCH, at, _NO_EPOCH, _NO_OFFSET, most, 0))
            parts.append(NO_TAGS)
        rack = self._rack_id.encode()
        parts += [compact(0), compact(len(rack)), rack, NO_TAGS]
        return b"".join(parts)

    def take(self, topic: str, found: Collection[tuple[Any, ...]]) -> None:
        """The answer has these partitions of a topic. aiokafka looks at what was asked for of them."""
        asked = self._offsets[topic]
        self._topics.append((topic, [(number, asked[number], self._partition_bytes) for number, *_ in found]))

    def asks_for(self, topic: str) -> Collection[int]:
        """The partitions of a topic of which the answer may have records."""
        return self._offsets[topic]

    def note(self, topic: str, partition: int, error: int) -> None:
        """A partition has an error."""
        if (offset := self._offsets.get(topic, {}).get(partition)) is not None:
            self.faults.append(FetchFault(topic, partition, offset, error))


@dataclass(slots=True)
class Fetched:
    """An answer as aiokafka reads it, of a version that it knows."""

    topics: list[tuple[str, list[tuple[Any, ...]]]]
    API_VERSION: ClassVar[int] = 11


class _FetchById(FlexibleRequest):
    API_KEY, API_VERSION = 1, 13


class _FetchByName(FlexibleRequest):
    API_KEY, API_VERSION = 1, 12


class _NotedAnswer:
    """The answer as aiokafka decodes it."""

    def __init__(self, asked: FetchMessage, answer: Answer) -> None:
        self._asked = asked
        self._answer = answer

    def decode(self, data: BytesIO) -> Any:
        answer = self._answer.decode(data)
        for topic, partitions in answer.topics:
            for number, error, *_ in partitions:
                if error:
                    self._asked.note(topic, number, error)
        return answer


class _Answer:
    """Records by partition.

    Partitions without records and errors are left out; their watermarks are not needed.
    """

    def __init__(self, asked: FetchMessage, keys: Mapping[str, bytes], behind_key: Callable[[bytes, int], int]) -> None:
        """`behind_key`: the end of a topic's key that begins at an index."""
        self._asked = asked
        self._topics = {key: topic for topic, key in keys.items()}
        self._behind_key = behind_key

    def decode(self, data: BytesIO) -> Fetched:
        raw = data.read()
        _, error, session = _ANSWER.unpack_from(raw)
        num_topics, at = varint(raw, _ANSWER.size)
        topics = []
        for _ in range(num_topics - 1):
            end = self._behind_key(raw, at)
            topic = self._topics.get(raw[at:end])
            if topic is None:
                raise struct.error("A topic that was not asked for, or its key ends early.")
            partitions, at = self._partitions(topic, raw, end)
            self._asked.take(topic, partitions)
            topics.append((topic, partitions))
        self._asked.session.answered(session, error, len(raw))
        return Fetched(topics)

    def _partitions(self, topic: str, raw: bytes, at: int) -> tuple[list[tuple[Any, ...]], int]:
        """The partitions of one topic that have records or an error, and where the next topic begins."""
        count, at = varint(raw, at)
        found: list[tuple[Any, ...]] = []
        asked = self._asked.asks_for(topic)
        for _ in range(count - 1):
            number, error, watermark, stable, start = _ANSWERED.unpack_from(raw, at)
            if number not in asked:
                raise struct.error("A partition that was not asked for.")
            num_aborted, at = varint(raw, at + _ANSWERED.size)
            aborted = []
            for _ in range(num_aborted - 1):  # 0 for none
                aborted.append(_ABORTED.unpack_from(raw, at))
                at = behind_tags(raw, at + _ABORTED.size)
            (replica,) = _REPLICA.unpack_from(raw, at)
            size, at = varint(raw, at + _REPLICA.size)
            end = at + max(0, size - 1)
            if error:
                self._asked.note(topic, number, error)
                error = UNKNOWN_TOPIC if error in (UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID) else error
            if error or size > 1:
                found.append((number, error, watermark, stable, start, aborted, replica, raw[at:end]))
            at = behind_tags(raw, end)
        at = behind_tags(raw, at)
        if at > len(raw):
            raise struct.error("The records of the last partition are incomplete.")
        return found, at


def _behind_id(raw: bytes, at: int) -> int:
    return at + _ID_BYTES


def _name(topic: str) -> bytes:
    encoded = topic.encode()
    return compact(len(encoded)) + encoded
