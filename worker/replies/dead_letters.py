"""Dead letters: the originals of records that could not be processed, or as much of each as the broker takes."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.errors import PenstockError
from penstock.producer.wire.codec import MAX_RECORD_BYTES
from penstock.producer.wire.headers import (
    DLQ_DELIVERY_COUNT,
    DLQ_GROUP,
    DLQ_MESSAGE,
    DLQ_OFFSET,
    DLQ_PARTITION,
    DLQ_TOPIC,
    ERROR_ATTEMPTS,
    ERROR_CODE,
    ERROR_MESSAGE,
    ERROR_TYPE,
    ERROR_WORKER,
    SOURCE,
    SOURCE_TIMESTAMP_MS,
    Headers,
    position,
)
from penstock.producer.wire.topics import dead_letter_topic
from penstock.worker.kafka.kafka_record import KafkaRecord
from penstock.worker.replies.outlet import OutAnswer, Outlet
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.reply_key import reply_key

_RETRY_S = 5.0
_RETRIES = 12  # a minute: a topic that is being created, or a permission that is being mended
# Room for the largest request and its headers. A record that came compressed can be far larger, and beyond
# socket.request.max.bytes (usually 100 MiB) a broker closes the connection instead of refusing the record.
_MAX_LETTER_BYTES = 2 * MAX_RECORD_BYTES
_HEADER_BYTES = 8  # at most, for one header beside its name and value
_MAX_MESSAGE_CHARS = 1000

log = structlog.get_logger("penstock.dead_letters")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record has a dead letter."""

    code: str  # of the error reply
    message: str
    type: str  # of the exception behind it, such as builtins.MemoryError

    @classmethod
    def of(cls, error: PenstockError) -> Self:
        """The fault of a rejected record. The type is that of the error's cause, if it has one."""
        kind = type(error.__cause__ or error)
        return cls(error.code, error.message, f"{kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True, slots=True)
class _Letter:
    """One form of a dead letter. Each later form of the same record leaves out more."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]
    left_out: str  # of the original; "" when all of it is there

    @property
    def num_bytes(self) -> int:
        headers = sum(len(name) * 4 + len(value or b"") + _HEADER_BYTES for name, value in self.headers)
        return len(self.key) + len(self.value or b"") + headers


@dataclass(slots=True)
class _Sending(OutAnswer):
    """A letter on its way."""

    letter: _Letter
    shorter: Iterator[_Letter]
    ended: Callable[[], None]
    num_retries: int = 0


class DeadLetters:
    """Writes originals to the dead-letter topic beside the request topic. Called on the event loop only."""

    def __init__(self, outlet: Outlet, group_id: str, worker: str) -> None:
        """`worker`: the client id of this member of the group. Every letter names both."""
        self._outlet = outlet
        self._reader = [(ERROR_WORKER, worker.encode()), (DLQ_GROUP, group_id.encode())]
        self._unwritable: set[str] = set()  # topics that have refused a letter to the end
        self.counts = {"kept": 0, "kept_in_part": 0, "lost": 0}  # letters, by outcome

    def keep(self, record: PendingRecord, fault: Fault, ended: Callable[[], None]) -> None:
        """Write a record's dead letter. `ended` is called once, when the broker has it or the letter was given up.

        A letter that is too large is written again with less in it: without the value, at last with the position
        alone. If the topic is missing or not allowed, the letter is sent again for a minute, and then logged and given
        up. From then on that topic's letters have one attempt each, until it takes one. Otherwise each record at fault
        would hold up the commits of its partition, and keep what is finished behind it in memory.
        """
        letters = _letters(record.original, [*_reasons(record, fault), *self._reader])
        self._put(record, next(letters), letters, ended)

    def _put(
        self, record: PendingRecord, letter: _Letter, shorter: Iterator[_Letter], ended: Callable[[], None]
    ) -> None:
        sending = _Sending(letter.key, letter.value, letter.headers, self._sent, record, letter, shorter, ended)
        if letter.num_bytes > _MAX_LETTER_BYTES:
            self._shorten(sending, MessageSizeTooLargeError(f"A dead letter has at most {_MAX_LETTER_BYTES:,} bytes"))
        else:
            self._outlet.put(dead_letter_topic(record.original.topic), None, [sending])

    def _sent(self, letters: Sequence[_Sending], error: KafkaError | None) -> None:
        """Letters to one topic have ended together."""
        if error is None:
            self._unwritable.discard(dead_letter_topic(letters[0].origin.original.topic))
            for one in letters:
                self.counts["kept_in_part" if one.letter.left_out else "kept"] += 1
                if one.letter.left_out:
                    named = record_fields(one.origin)
                    log.warning("dead_letter_kept_in_part", left_out=one.letter.left_out, **named)
                one.ended()
        elif isinstance(error, MessageSizeTooLargeError):
            for one in letters:
                self._shorten(one, error)
        else:
            self._retry(letters, error)

    def _shorten(self, sending: _Sending, error: KafkaError) -> None:
        if (shorter := next(sending.shorter, None)) is not None:
            self._put(sending.origin, shorter, sending.shorter, sending.ended)
        else:
            self._give_up(sending, error)

    def _retry(self, letters: Sequence[_Sending], error: KafkaError) -> None:
        topic = dead_letter_topic(letters[0].origin.original.topic)
        if any(one.num_retries == _RETRIES for one in letters):
            self._unwritable.add(topic)
        again = []
        for one in letters:
            if topic in self._unwritable:
                self._give_up(one, error)
            else:
                one.num_retries += 1
                again.append(one)
        if again:
            first = record_fields(again[0].origin, len(again))
            log.error("dead_letter_undeliverable", error=repr(error), letters=len(again), retry_s=_RETRY_S, **first)
            asyncio.get_running_loop().call_later(_RETRY_S, self._outlet.put, topic, None, again)

    def _give_up(self, sending: _Sending, error: KafkaError) -> None:
        self.counts["lost"] += 1
        named = record_fields(sending.origin)
        log.error("dead_letter_lost", error=repr(error), letter_bytes=sending.letter.num_bytes, **named)
        sending.ended()


def _reasons(record: PendingRecord, fault: Fault) -> Headers:
    """The headers that say why, and of what: in our names, and once more in Kafka's."""
    original, message, attempts = record.original, fault.message[:_MAX_MESSAGE_CHARS].encode(), record.num_attempts
    return [
        (ERROR_CODE, fault.code.encode()),
        (ERROR_MESSAGE, message),
        (ERROR_TYPE, fault.type.encode()),
        (ERROR_ATTEMPTS, b"%d" % attempts),
        (SOURCE, position(original.topic, original.partition, original.offset)),
        (SOURCE_TIMESTAMP_MS, b"%d" % original.timestamp),
        (DLQ_TOPIC, original.topic.encode()),
        (DLQ_PARTITION, b"%d" % original.partition),
        (DLQ_OFFSET, b"%d" % original.offset),
        (DLQ_DELIVERY_COUNT, b"%d" % attempts),
        (DLQ_MESSAGE, message),
    ]


def _letters(record: KafkaRecord, reasons: Headers) -> Iterator[_Letter]:
    """The forms of a letter: whole, without the value, the position alone. Headers tell the sizes left out."""
    key = record.key if record.key is not None else reply_key(record)
    yield _Letter(key, record.value, [*record.headers, *reasons], left_out="")
    notes: list[tuple[str, bytes]] = []
    if record.value:
        notes.append(("penstock-value-left-out-bytes", b"%d" % len(record.value)))
        notes.append(("penstock-value-left-out-sha256", hashlib.sha256(record.value).hexdigest().encode()))
        yield _Letter(key, b"", [*record.headers, *reasons, *notes], left_out="value")
    headers_bytes = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    notes.append(("penstock-headers-left-out-bytes", b"%d" % headers_bytes))
    notes.append(("penstock-key-left-out-bytes", b"%d" % len(record.key or b"")))
    value = b"" if record.value else record.value
    yield _Letter(reply_key(record), value, [*reasons, *notes], left_out="key, value and headers")
