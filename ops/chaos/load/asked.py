"""One request record, what it is owed, and what became of it."""

import hashlib
import math
import struct
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import numpy as np

from penstock.ops.bench.load.records import Headers, Partition, Position, Record

Ids = bytes  # the token ids of a sequence, each four bytes, little-endian

MOST_UNPACKED_BYTES = 16 << 20  # of a record batch; the worker unpacks no more
_LEAST_LEFT_OUT_BYTES = (8 << 20) - (64 << 10)  # of a value; with less a dead letter is whole
ON_DEADLINE = frozenset({"expired", "overloaded"})  # right answers to a request that has a deadline
_REPLY, _BACKEND, _INVALID = frozenset({""}), frozenset({"backend"}), frozenset({"invalid_request"})
_OR_LATE = {codes: codes | ON_DEADLINE for codes in (_REPLY, _BACKEND, _INVALID)}
_PARTITIONS: dict[Partition, Partition] = {}  # one of each, as a million requests name them
_REASONS = (  # headers of every dead letter; none is empty
    "penstock-error-code",
    "penstock-error-message",
    "penstock-error-type",
    "penstock-error-attempts",
    "penstock-error-worker",
    "__dlq.errors.group",
)


class AnswerSeen(NamedTuple):
    """A record of a reply topic."""

    code: str  # of an error reply; "" is a reply
    timestamp: int


class LetterSeen(NamedTuple):
    """A record of a dead-letter topic."""

    code: str
    timestamp: int
    refused_by: str  # the fault by which the reply topic refused answers at this time; "" without one


@dataclass(slots=True)
class Asked:
    """A request. Of its value and headers, which dead letters repeat, it keeps digests: a run has a million of these.

    A bomb is a record, alone in its batch, that unpacks to more than is unpacked. It is owed one dead letter, which has
    the batch in place of the record.
    """

    partition: Partition
    offset: int
    timestamp: int
    key: bytes | None
    contents: bytes  # digest of the value and the headers
    left_out: tuple[bytes, str] | None  # of a value that a letter may leave out: its headers' digest, its own SHA-256
    is_bomb: bool
    num_headers: int
    correlation_id: bytes | None
    reply_topic: str | None  # None: a dead letter is the only answer
    deadline_ms: int | None
    codes: frozenset[str]  # of which its answer has one; "" is a reply
    ids: tuple[Ids, ...]
    replies: tuple[AnswerSeen, ...] = ()
    letters: tuple[LetterSeen, ...] = ()

    @classmethod
    def of(cls, record: Record, poison: int) -> "Asked":
        """The demand of a record of a request topic. `poison`: the token id on which the engine fails."""
        headers = dict(record.headers)
        is_bomb = len(record.value or b"") > MOST_UNPACKED_BYTES
        reply_topic = None if is_bomb else headers.get("kafka_replyTopic")
        ids = _sequences(record.value)
        if ids is None or reply_topic is None:
            codes = _INVALID
        else:
            codes = _BACKEND if any(poison in np.frombuffer(one, "<u4") for one in ids) else _REPLY
        deadline = headers.get("penstock-deadline-ms")
        return cls(
            _PARTITIONS.setdefault((record.topic, record.partition), (record.topic, record.partition)),
            record.offset,
            record.timestamp,
            record.key,
            _digest(record.value, record.headers),
            _left_out(record),
            is_bomb,
            len(record.headers),
            headers.get("kafka_correlationId"),
            None if reply_topic is None else sys.intern(reply_topic.decode()),
            None if deadline is None else int(deadline),
            codes if deadline is None else _OR_LATE[codes],
            ids or (),
        )

    @property
    def position(self) -> Position:
        return self.partition, self.offset

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with the request, so that its reply is the answer."""
        return "" in self.codes

    @property
    def has_reply(self) -> bool:
        """Whether it was answered with its result."""
        return any(not reply.code for reply in self.replies)

    @property
    def source(self) -> bytes:
        """The position, as a dead letter names it."""
        topic, partition = self.partition
        return f"{topic}-{partition}-{self.offset}".encode()

    def answered_at_ms(self) -> float:
        """When brokers had all that the request is owed. Infinite while they have not.

        That is a reply, or a dead letter with an error reply. A dead letter alone is enough without a reply address,
        and where a fault let the reply topic refuse answers.
        """
        letters = [letter.timestamp for letter in self.letters]
        if self.reply_topic is None:
            return min(letters, default=math.inf)
        whole = [reply.timestamp for reply in self.replies if not reply.code or reply.code in ON_DEADLINE]
        alone = [letter.timestamp for letter in self.letters if letter.refused_by]
        errors = [reply.timestamp for reply in self.replies]
        both = [max(min(errors), min(letters))] if errors and letters else []
        return min([*whole, *alone, *both], default=math.inf)

    def is_complete(self, letter: Record) -> bool:
        """Whether a dead letter has this request's key, value and headers, and all that says why, and of what."""
        if not self._has_reasons(letter):
            return False
        if self.is_bomb:
            is_batch = (letter.value or b"")[:8] == struct.pack(">q", self.offset)  # it begins with its offset
            return is_batch and "penstock-unreadable-batch" in dict(letter.headers)
        has_key = bool(letter.key) if self.key is None else letter.key == self.key
        return has_key and self._has_contents(letter)

    def _has_contents(self, letter: Record) -> bool:
        headers = letter.headers[: self.num_headers]
        if self.contents == _digest(letter.value, headers):
            return True
        left_out = dict(letter.headers).get("penstock-value-left-out-sha256", b"").decode()
        return self.left_out == (_digest(None, headers), left_out)

    def _has_reasons(self, letter: Record) -> bool:
        """The headers of every dead letter. Those that Kafka names too have the same values under its names."""
        headers = dict(letter.headers)
        topic, partition = self.partition
        exact = {
            "penstock-source": self.source,
            "penstock-source-timestamp-ms": b"%d" % self.timestamp,
            "__dlq.errors.topic": topic.encode(),
            "__dlq.errors.partition": b"%d" % partition,
            "__dlq.errors.offset": b"%d" % self.offset,
            "__dlq.errors.delivery.count": headers.get("penstock-error-attempts"),
            "__dlq.errors.message": headers.get("penstock-error-message"),
        }
        has_all = all(headers.get(name) for name in _REASONS)
        return has_all and all(headers.get(name) == value for name, value in exact.items())


def answer_key(topic_id: bytes, source: bytes, timestamp: int) -> bytes:
    """The key of all answers to the request at this position, `topic-partition-offset`."""
    return hashlib.blake2b(b"%b%b-%d" % (topic_id, source, timestamp), digest_size=16).digest()


def _digest(value: bytes | None, headers: Headers) -> bytes:
    found = hashlib.blake2b(repr([*headers]).encode(), digest_size=16)
    found.update(value or b"")
    return found.digest()


def _left_out(record: Record) -> tuple[bytes, str] | None:
    value = record.value or b""
    if len(value) < _LEAST_LEFT_OUT_BYTES:
        return None
    return _digest(None, record.headers), hashlib.sha256(value).hexdigest()


def _sequences(value: bytes | None) -> tuple[Ids, ...] | None:
    """The sequences of a request; None if it is malformed."""
    try:
        body: Any = msgpack.unpackb(value or b"")
        ids, lens = body["ids"], struct.unpack(f"<{len(body['lens']) // 4}I", body["lens"])
        if len(lens) == 1 and len(ids) == 4 * lens[0]:
            return (ids,)
        ends = np.cumsum(lens).tolist()
        if len(ids) != 4 * ends[-1]:
            return None
        return tuple([ids[4 * (end - length) : 4 * end] for end, length in zip(ends, lens, strict=True)])
    except (ValueError, TypeError, KeyError, IndexError, struct.error, msgpack.UnpackException):
        return None
