"""Dead letters: the originals of records that could not be processed, or as much of each as the broker takes."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.codec import MAX_RECORD_BYTES
from penstock.producer.wire.headers import ERROR_CODE, Headers
from penstock.producer.wire.topics import dead_letter_topic
from penstock.worker.requests.record import KafkaRecord

_RETRY_S = 5.0
# Room for the largest request and its headers. A record that came compressed can be far larger, and beyond
# socket.request.max.bytes (usually 100 MiB) a broker closes the connection instead of refusing the record.
_MAX_LETTER_BYTES = 2 * MAX_RECORD_BYTES
_HEADER_BYTES = 8  # at most, for one header beside its name and value

log = structlog.get_logger("penstock.dead_letters")


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


class DeadLetters:
    """Writes originals to the dead-letter topic beside the request topic. Called on the event loop only."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def keep(self, record: KafkaRecord, code: str, reason: str, done: Callable[[], None]) -> None:
        """Write a record's dead letter. `done` is called once, when the broker has it or can never take it.

        A letter that is too large is written again with less in it: without the value, at last with the position
        alone. While the topic cannot be written to, the letter is retried without end and `done` is not called, so
        that the record's offset stays uncommitted.
        """
        reasons = [
            (ERROR_CODE, code.encode()),
            ("penstock-error-message", reason[:1000].encode()),
            ("penstock-source", f"{record.topic}-{record.partition}-{record.offset}".encode()),
        ]
        letters = _letters(record, reasons)
        self._put(record, next(letters), letters, done)

    def _put(self, record: KafkaRecord, letter: _Letter, shorter: Iterator[_Letter], done: Callable[[], None]) -> None:
        topic = dead_letter_topic(record.topic)
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}

        def sent(_: Sequence[OutRecord], error: KafkaError | None) -> None:
            if error is None:
                if letter.left_out:
                    log.warning("dead_letter_kept_in_part", left_out=letter.left_out, **position)
                done()
            elif not isinstance(error, MessageSizeTooLargeError):
                log.error("dead_letter_undeliverable", error=repr(error), retry_s=_RETRY_S, **position)
                asyncio.get_running_loop().call_later(_RETRY_S, self._outbox.put, topic, None, [sendable])
            elif (next_letter := next(shorter, None)) is not None:
                self._put(record, next_letter, shorter, done)
            else:
                log.error("dead_letter_lost", error=repr(error), letter_bytes=letter.num_bytes, **position)
                done()

        sendable = OutRecord(letter.key, letter.value, letter.headers, sent)
        if letter.num_bytes > _MAX_LETTER_BYTES:
            sent((), MessageSizeTooLargeError(f"A dead letter has at most {_MAX_LETTER_BYTES:,} bytes"))
        else:
            self._outbox.put(topic, None, [sendable])


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


def reply_key(record: KafkaRecord) -> bytes:
    """The key of every answer to one record: a hash of its position, so that clients can drop duplicates."""
    source = f"{record.topic}-{record.partition}-{record.offset}"
    return hashlib.blake2b(source.encode(), digest_size=16).digest()
