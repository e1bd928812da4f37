"""Kafka record headers of the wire format: reply address, deadline, class, trace. Names are those of Spring Kafka."""

import base64
import functools
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from penstock.producer.errors import InvalidRequest

CORRELATION_ID = "kafka_correlationId"
REPLY_TOPIC = "kafka_replyTopic"
REPLY_PARTITION = "kafka_replyPartition"
DEADLINE_MS = "penstock-deadline-ms"
CLASS = "penstock-class"
CANCEL = "penstock-cancel"
# Headers of an enriched record, beside those of its original; and SOURCE.
MODEL = "penstock-model"
REVISION = "penstock-revision"
FINISHED_MS = "penstock-finished-ms"
TRACEPARENT = "traceparent"
PARTIAL = "penstock-partial"
CONTENT_TYPE = "content-type"
REPLAY_OF = "penstock-replay-of"
REPLAYS = "penstock-replays"
# Headers of a copy in a topic of replays, beside those of its original, whose position and time they name.
REPLAY_SOURCE = "penstock-replay-source"
REPLAY_TIME_MS = "penstock-replay-time-ms"
REPLAY_RUN = "penstock-replay-run"

# Headers of a dead letter, beside those of its original.
ERROR_CODE = "penstock-error-code"
ERROR_MESSAGE = "penstock-error-message"
ERROR_TYPE = "penstock-error-type"
ERROR_ATTEMPTS = "penstock-error-attempts"
ERROR_WORKER = "penstock-error-worker"
SOURCE = "penstock-source"
SOURCE_TIMESTAMP_MS = "penstock-source-timestamp-ms"
SOURCE_TOPIC_ID = "penstock-source-topic-id"
LAST_OFFSET = "penstock-last-offset"  # of a letter of several records
RECORDS = "penstock-records"  # their number; the last header of such a letter
# The names that brokers give to the dead letters of share groups: KIP-1191, ShareGroupDLQStateManager of Kafka 4.4.
DLQ_TOPIC = "__dlq.errors.topic"
DLQ_PARTITION = "__dlq.errors.partition"
DLQ_OFFSET = "__dlq.errors.offset"
DLQ_GROUP = "__dlq.errors.group"
DLQ_DELIVERY_COUNT = "__dlq.errors.delivery.count"
DLQ_MESSAGE = "__dlq.errors.message"
_OF_DEAD_LETTER = re.compile(
    r"penstock-(error-(code|message|type|attempts|worker)|source(-timestamp-ms|-topic-id)?|last-offset|records"
    r"|(value|headers|key)-left-out-(bytes|sha256))|__dlq\.errors\..*"
)

_IS_BULK = {None: False, b"online": False, b"bulk": True}
_TOPIC_ID = re.compile(rb"[a-zA-Z0-9_-]{22}")
_TOPIC_NAME = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
# W3C Trace Context: version, trace id, parent id, flags; versions after 00 may add more. Ids of zeros are invalid.
_TRACEPARENT = re.compile(
    rb"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED = 1  # the flag's bit

JSON_TYPE = b"application/json"  # of a reply's CONTENT_TYPE

Headers = Sequence[tuple[str, bytes]]


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class ReplyAddress:
    """Destination of a reply, and the headers that it carries back."""

    topic: str
    partition: int | None  # None: chosen by the reply's key
    correlation_id: bytes | None
    traceparent: bytes | None  # copied unchanged
    replay_of: bytes | None = None  # copied unchanged: the record that this one repeats, as its sender says
    is_json: bool = False  # the reply is JSON, as the request is

    def headers(self) -> list[tuple[str, bytes]]:
        """The reply record's headers."""
        headers: list[tuple[str, bytes]] = []
        if self.correlation_id is not None:
            headers.append((CORRELATION_ID, self.correlation_id))
        if self.traceparent is not None:
            headers.append((TRACEPARENT, self.traceparent))
        if self.replay_of is not None:
            headers.append((REPLAY_OF, self.replay_of))
        if self.is_json:
            headers.append((CONTENT_TYPE, JSON_TYPE))
        return headers


def request_headers(
    correlation_id: bytes, reply_topic: str, reply_partition: int, deadline_ms: int | None
) -> list[tuple[str, bytes]]:
    """Headers of a request record; `deadline_ms` is Unix time in milliseconds."""
    headers = [(CORRELATION_ID, correlation_id), *_reply_to(reply_topic, reply_partition)]
    if deadline_ms is not None:
        headers.append((DEADLINE_MS, b"%d" % deadline_ms))
    return headers


@functools.lru_cache(maxsize=64)  # a client has one
def _reply_to(topic: str, partition: int) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    return (REPLY_TOPIC, topic.encode()), (REPLY_PARTITION, struct.pack(">i", partition))


def parse_address(headers: Mapping[str, bytes]) -> ReplyAddress:
    """The reply address. Unknown headers are ignored. Of a repeated header the last counts, as in `dict(headers)`.

    Raises:
        InvalidRequest: no reply topic, or a malformed reply header; such a request cannot be answered.
    """
    topic, partition = _destination(headers.get(REPLY_TOPIC), headers.get(REPLY_PARTITION))
    return ReplyAddress(topic, partition, headers.get(CORRELATION_ID), headers.get(TRACEPARENT), headers.get(REPLAY_OF))


@functools.lru_cache(maxsize=1024)  # a client has one
def _destination(raw_topic: bytes | None, raw_partition: bytes | None) -> tuple[str, int | None]:
    """The topic and partition of a reply; a partition of None is chosen by the reply's key."""
    if not raw_topic:
        raise InvalidRequest(f"The record has no `{REPLY_TOPIC}` header, so it cannot be answered.")
    if raw_partition is not None and len(raw_partition) != 4:
        raise InvalidRequest(f"`{REPLY_PARTITION}` must be 4 bytes, a big-endian int32.")
    partition = None if raw_partition is None else int.from_bytes(raw_partition, "big", signed=True)
    if partition is not None and partition < 0:
        raise InvalidRequest(f"`{REPLY_PARTITION}` must not be negative. Given: {partition}")
    if not _TOPIC_NAME.fullmatch(raw_topic):
        raise InvalidRequest(f"`{REPLY_TOPIC}` is not a topic name: 1 to 249 of a-z A-Z 0-9 . _ -")
    return raw_topic.decode(), partition


def position(topic: str, partition: int, offset: int) -> bytes:
    """A record's position, as `penstock-source` and `penstock-replay-of` name it."""
    return f"{topic}-{partition}-{offset}".encode()


def topic_id_text(topic_id: bytes) -> bytes:
    """A topic's id, 16 bytes, as Kafka's tools print it and `penstock-source-topic-id` holds it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=")


def parse_topic_id(text: bytes | None) -> bytes | None:
    """The id that `topic_id_text` has written, or None."""
    if text is None or _TOPIC_ID.fullmatch(text) is None:
        return None
    return base64.urlsafe_b64decode(text + b"==")


def original_headers(headers: Headers) -> list[tuple[str, bytes]]:
    """The headers of a dead letter that its original had."""
    return [(name, value) for name, value in headers if _OF_DEAD_LETTER.fullmatch(name) is None]


def replay_headers(
    headers: Headers,
    source: bytes,
    *,
    deadline_ms: int | None,
    reply_topic: str | None,
    reply_partition: int | None,
) -> list[tuple[str, bytes]]:
    """Headers with which a record is sent again. `source`: where it was read.

    The deadline is replaced or dropped, and so is the reply address if `reply_topic` is given. The first position of
    the record is kept through repeated replays, which are counted.
    """
    given = dict(headers)
    replaced = {DEADLINE_MS, REPLAY_OF, REPLAYS}
    if reply_topic is not None:
        replaced |= {REPLY_TOPIC, REPLY_PARTITION}
    again = [(name, value) for name, value in headers if name not in replaced]
    again += [(REPLAY_OF, given.get(REPLAY_OF) or source), (REPLAYS, b"%d" % (num_replays(headers) + 1))]
    if deadline_ms is not None:
        again.append((DEADLINE_MS, b"%d" % deadline_ms))
    if reply_topic is not None:
        again.append((REPLY_TOPIC, reply_topic.encode()))
        if reply_partition is not None:
            again.append((REPLY_PARTITION, struct.pack(">i", reply_partition)))
    return again


def num_replays(headers: Headers) -> int:
    """Number of times that a record was sent again, by its own header."""
    raw = dict(headers).get(REPLAYS) or b""
    return int(raw) if raw.isdigit() and len(raw) < 10 else 0


def parse_deadline_ms(headers: Mapping[str, bytes]) -> int | None:
    """The request's deadline, Unix time in milliseconds, or None.

    Raises:
        InvalidRequest: the header is not a decimal number.
    """
    raw = headers.get(DEADLINE_MS)
    if raw is None:
        return None
    if not raw.isdigit() or len(raw) > 15:
        raise InvalidRequest(f"`{DEADLINE_MS}` must be Unix time in milliseconds, as decimal digits.")
    return int(raw)


def parse_is_bulk(headers: Mapping[str, bytes]) -> bool:
    """True for class `bulk`; without the header the class is `online`. Raises InvalidRequest for other classes."""
    raw = headers.get(CLASS)
    is_bulk = _IS_BULK.get(raw)
    if is_bulk is None:
        raise InvalidRequest(f"`{CLASS}` must be `online` or `bulk`. Given: {(raw or b'')[:20]!r}")
    return is_bulk


def content_key(value: bytes) -> bytes:
    """The record key of a request: 16 bytes of BLAKE2b over its value, so that one worker gets equal requests."""
    return hashlib.blake2b(value, digest_size=16).digest()


def partition_for(key: bytes, num_partitions: int) -> int:
    """The partition of a keyed record. Keys are hashes, so their first four bytes are uniform."""
    return int.from_bytes(key[:4], "big") % num_partitions


class TraceParent(NamedTuple):
    """A span of another process, by its ids in hexadecimal."""

    trace_id: str
    span_id: str
    trace_flags: str

    @classmethod
    def parse(cls, header: bytes | None) -> Self | None:
        """The header's content; None without a valid header."""
        found = _TRACEPARENT.fullmatch(header or b"")
        return None if found is None else cls(*[part.decode() for part in found.group(1, 2, 3)])


def is_unsampled(header: bytes | None) -> bool:
    """Whether the sender of a record has decided that its trace is not recorded. An invalid header decides nothing."""
    found = TraceParent.parse(header)
    return found is not None and not int(found.trace_flags, 16) & _SAMPLED


def format_traceparent(trace_id: int, span_id: int, trace_flags: int) -> bytes:
    """The header that names a span."""
    return b"00-%032x-%016x-%02x" % (trace_id, span_id, trace_flags)
