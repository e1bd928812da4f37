"""One request record, what it is owed, and what became of it."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
import numpy as np

Ids = bytes  # the token ids of a sequence, each four bytes, little-endian
Headers = Sequence[tuple[str, bytes]]
Partition = tuple[str, int]
Position = tuple[Partition, int]

ON_DEADLINE = frozenset({"expired", "overloaded"})  # right answers to a request that has a deadline
_REPLY, _BACKEND, _INVALID = frozenset({""}), frozenset({"backend"}), frozenset({"invalid_request"})
_OR_LATE = {codes: codes | ON_DEADLINE for codes in (_REPLY, _BACKEND, _INVALID)}


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


class AnswerSeen(NamedTuple):
    """A record of a reply topic."""

    position: Position
    code: str  # of an error reply; "" is a reply
    timestamp: int


class LetterSeen(NamedTuple):
    """A record of a dead-letter topic."""

    position: Position
    is_only_answer: bool  # the reply topic refused answers at this time


@dataclass(slots=True)
class Asked:
    """A request. Of its value and headers, which dead letters repeat, it keeps digests."""

    position: Position
    timestamp: int
    key: bytes | None
    value_digest: bytes
    headers_digest: bytes
    num_headers: int
    correlation_id: bytes | None
    reply_topic: str | None  # None: a dead letter is the only answer
    deadline_ms: int | None
    codes: frozenset[str]  # of which its answer has one; "" is a reply
    ids: list[Ids]
    replies: list[AnswerSeen] = field(default_factory=list)
    letters: list[LetterSeen] = field(default_factory=list)

    @classmethod
    def of(cls, record: Record, poison: int) -> "Asked":
        """What a record of a request topic asks for. `poison`: the token id on which the engine fails."""
        headers = dict(record.headers)
        reply_topic = headers.get("kafka_replyTopic")
        ids = _sequences(record.value)
        if ids is None or reply_topic is None:
            codes = _INVALID
        else:
            codes = _BACKEND if any(poison in np.frombuffer(one, "<u4") for one in ids) else _REPLY
        deadline = headers.get("penstock-deadline-ms")
        return cls(
            record.position,
            record.timestamp,
            record.key,
            digest(record.value),
            _headers_digest(record.headers),
            len(record.headers),
            headers.get("kafka_correlationId"),
            None if reply_topic is None else reply_topic.decode(),
            None if deadline is None else int(deadline),
            codes if deadline is None else _OR_LATE[codes],
            ids or [],
        )

    @property
    def answer_key(self) -> bytes:
        """The key of all answers to this request."""
        (topic, partition), offset = self.position
        return answer_key(f"{topic}-{partition}-{offset}".encode())

    def is_answered(self, ends: Mapping[Partition, int] | None) -> bool:
        """Whether the request has all that it is owed, below `ends` if given."""
        letters = [letter for letter in self.letters if _is_below(letter.position, ends)]
        if self.reply_topic is None:
            return bool(letters)
        codes = [reply.code for reply in self.replies if _is_below(reply.position, ends)]
        if any(code == "" or code in ON_DEADLINE for code in codes):
            return True
        return any(letter.is_only_answer or bool(codes) for letter in letters)

    def is_complete(self, letter: Record) -> bool:
        """Whether a dead letter has this request's key, value and headers, and an error code."""
        headers = dict(letter.headers)
        left_out = headers.get("penstock-value-left-out-sha256", b"").decode()  # of a value that is too large
        has_value = self.value_digest.hex() == left_out or self.value_digest == digest(letter.value)
        has_headers = self.headers_digest == _headers_digest(letter.headers[: self.num_headers])
        has_key = self.key is None or letter.key == self.key
        return has_key and has_value and has_headers and "penstock-error-code" in headers


def answer_key(source: bytes) -> bytes:
    """The key of all answers to the request at this position, `topic-partition-offset`."""
    return hashlib.blake2b(source, digest_size=16).digest()


def digest(value: bytes | None) -> bytes:
    """SHA-256 of a value."""
    return hashlib.sha256(value or b"").digest()


def _headers_digest(headers: Headers) -> bytes:
    return digest(repr([*headers]).encode())


def _is_below(position: Position, ends: Mapping[Partition, int] | None) -> bool:
    return ends is None or position[1] < ends.get(position[0], 0)


def _sequences(value: bytes | None) -> list[Ids] | None:
    """The sequences of a request; None if it is malformed."""
    try:
        body: Any = msgpack.unpackb(value or b"")
        ids, lens = body["ids"], struct.unpack(f"<{len(body['lens']) // 4}I", body["lens"])
        if len(lens) == 1 and len(ids) == 4 * lens[0]:
            return [ids]
        ends = np.cumsum(lens).tolist()
        if len(ids) != 4 * ends[-1]:
            return None
        return [ids[4 * (end - length) : 4 * end] for end, length in zip(ends, lens, strict=True)]
    except (ValueError, TypeError, KeyError, IndexError, struct.error, msgpack.UnpackException):
        return None
