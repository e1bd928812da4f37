"""Dead letters: the originals of records that could not be processed, or as much of each as the broker takes."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
    LAST_OFFSET,
    RECORDS,
    SOURCE,
    SOURCE_TIMESTAMP_MS,
    SOURCE_TOPIC_ID,
    Headers,
    position,
    topic_id_text,
)
from penstock.producer.wire.joint_letters import LetterRecord, encode_letter_records
from penstock.producer.wire.topics import dead_letter_topic
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer, Outlet
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields

_RETRY_S = 5.0
_RETRIES = 12  # a minute: a topic that is being created, or a permission that is being mended
# Room for the largest request and its headers. A record that came compressed can be far larger, and beyond
# socket.request.max.bytes (usually 100 MiB) a broker closes the connection instead of refusing the record.
_MAX_LETTER_BYTES = 2 * MAX_RECORD_BYTES
_HEADER_BYTES = 8  # at most, for one header beside its name and value
_MAX_MESSAGE_CHARS = 1000
# Of the records that share a letter; a larger record has its own.
_JOINT_RECORDS, _JOINT_BYTES = 512, 64 * 1024

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


Faults = Sequence[tuple[PendingRecord, Fault]]


@dataclass(slots=True)
class _Sending(OutAnswer):
    """A letter on its way."""

    letter: _Letter
    faults: Faults  # that it tells
    forms: Iterator[_Letter]  # shorter ones, of the same faults
    num_retries: int = field(default=0, init=False)

    @property
    def origins(self) -> Sequence[PendingRecord]:
        return [record for record, _ in self.faults]


class DeadLetters:
    """Writes originals to the dead-letter topic beside the request topic. Called on the event loop only."""

    def __init__(
        self, outlet: Outlet, ended: Callable[[Sequence[PendingRecord]], None], group_id: str, worker: str
    ) -> None:
        """`ended` is called once for each record, when the broker has its letter or the letter was given up or dropped.

        `worker`: the client id of this member of the group. Every letter names both.
        """
        self._outlet = outlet
        self._ended = ended
        self._reader = [(ERROR_WORKER, worker.encode()), (DLQ_GROUP, group_id.encode())]
        self._unwritable: set[str] = set()  # topics that have refused a letter to the end
        self.counts = {"kept": 0, "kept_in_part": 0, "lost": 0}  # records, by the outcome of their letters

    def keep(self, ended_together: Iterable[tuple[PendingRecord, Fault | None]]) -> None:
        """Write the dead letters of records that end in one step. Those without a fault get none.

        Records that follow each other in their partition share a letter.

        A letter that is too large is written again with less in it: that of several records as one each, one without
        the value, at last with the position alone. If the topic is missing or not allowed, the letter is sent again for
        a minute, and then logged and given up. From then on that topic's letters have one attempt each, until it takes
        one. Otherwise each record at fault would hold up the commits of its partition, and keep what is finished behind
        it in memory.
        """
        for faults in _runs(ended_together):
            self._put(faults, self._forms(faults))

    def _forms(self, faults: Faults) -> Iterator[_Letter]:
        if len(faults) > 1:
            return iter([_joint_letter(faults, self._reader)])
        [(record, fault)] = faults
        return _letters(record, [*_reasons(record, fault), *self._reader])

    def _put(self, faults: Faults, forms: Iterator[_Letter]) -> bool:
        """Send a letter in its next form. Returns false if there is none."""
        letter = next(forms, None)
        if letter is None:
            return False
        origin = faults[0][0]
        sending = _Sending(letter.key, letter.value, letter.headers, self._sent, origin, letter, faults, forms)
        if letter.num_bytes > _MAX_LETTER_BYTES:
            self._shorten(sending, MessageSizeTooLargeError(f"A dead letter has at most {_MAX_LETTER_BYTES:,} bytes"))
        else:
            self._outlet.put(dead_letter_topic(origin.original.topic), None, [sending])
        return True

    def _sent(self, letters: Sequence[_Sending], error: KafkaError | None) -> None:
        """Letters to one topic have ended together."""
        if error is None:
            self._unwritable.discard(dead_letter_topic(letters[0].origin.original.topic))
            for one in letters:
                self.counts["kept_in_part" if one.letter.left_out else "kept"] += len(one.faults)
                if one.letter.left_out:
                    named = record_fields(one.origin)
                    log.warning("dead_letter_kept_in_part", left_out=one.letter.left_out, **named)
                self._ended(one.origins)
        elif isinstance(error, AnswerDropped):
            for one in letters:
                self._ended(one.origins)
        elif isinstance(error, MessageSizeTooLargeError):
            for one in letters:
                self._shorten(one, error)
        else:
            self._retry(letters, error)

    def _shorten(self, sending: _Sending, error: KafkaError) -> None:
        if len(sending.faults) > 1:
            for fault in sending.faults:
                self._put([fault], self._forms([fault]))
        elif not self._put(sending.faults, sending.forms):
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
        num_records = len(sending.faults)
        self.counts["lost"] += num_records
        named = {"records": num_records, **record_fields(sending.origin, num_records)}
        log.error("dead_letter_lost", error=repr(error), letter_bytes=sending.letter.num_bytes, **named)
        self._ended(sending.origins)


def _runs(ended_together: Iterable[tuple[PendingRecord, Fault | None]]) -> Iterator[Faults]:
    """The records at fault that share a letter: between two of them are only others of these, with or without a fault.

    So with exactly-once delivery all that a letter stands for is answered, and committed, together.
    """
    by_epoch: dict[tuple[Source, int, bytes], list[tuple[PendingRecord, Fault | None]]] = {}
    for record, fault in ended_together:
        by_epoch.setdefault((record.source, record.epoch, record.topic_id), []).append((record, fault))
    for ended in by_epoch.values():
        run: list[tuple[PendingRecord, Fault]] = []
        num_bytes, last_offset = 0, -1
        for record, fault in ended:
            offset, size = record.original.offset, record.held_bytes if fault is not None else 0
            if run and (offset != last_offset + 1 or num_bytes + size > _JOINT_BYTES or len(run) == _JOINT_RECORDS):
                yield run
                run, num_bytes = [], 0
            last_offset, num_bytes = offset, num_bytes + size
            if fault is not None:
                run.append((record, fault))
        if run:
            yield run


def _joint_letter(faults: Faults, reader: Headers) -> _Letter:
    """Its headers are those of the first record, but for the codes, which are those of all."""
    (first, fault), originals = faults[0], [record.original for record, _ in faults]
    records = [
        LetterRecord(
            one.original.offset,
            one.original.timestamp,
            one.original.key,
            one.original.value,
            one.original.headers,
            why.code,
            why.message[:_MAX_MESSAGE_CHARS],
            why.type,
            one.num_attempts,
        )
        for one, why in faults
    ]
    codes = ",".join(dict.fromkeys([why.code for _, why in faults]))
    reasons = _reasons(first, replace(fault, code=codes))
    number = [(LAST_OFFSET, b"%d" % originals[-1].offset), (RECORDS, b"%d" % len(faults))]
    value = encode_letter_records(records)
    return _Letter(first.reply_key, value, [*reasons, *reader, *number], left_out="")


def _reasons(record: PendingRecord, fault: Fault) -> Headers:
    """The headers that say why, and of what: in our names, and once more in Kafka's."""
    original, message, attempts = record.original, fault.message[:_MAX_MESSAGE_CHARS].encode(), record.num_attempts
    return [
        (ERROR_CODE, fault.code.encode()),
        (ERROR_MESSAGE, message),
        (ERROR_TYPE, fault.type.encode()),
        (ERROR_ATTEMPTS, b"%d" % attempts),
        (SOURCE, position(original.topic, original.partition, original.offset)),
        (SOURCE_TOPIC_ID, topic_id_text(record.topic_id)),
        (SOURCE_TIMESTAMP_MS, b"%d" % original.timestamp),
        (DLQ_TOPIC, original.topic.encode()),
        (DLQ_PARTITION, b"%d" % original.partition),
        (DLQ_OFFSET, b"%d" % original.offset),
        (DLQ_DELIVERY_COUNT, b"%d" % attempts),
        (DLQ_MESSAGE, message),
    ]


def _letters(pending: PendingRecord, reasons: Headers) -> Iterator[_Letter]:
    """The forms of a letter: whole, without the value, the position alone. Headers tell the sizes left out."""
    record, own_key = pending.original, pending.reply_key
    key = record.key if record.key is not None else own_key
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
    yield _Letter(own_key, value, [*reasons, *notes], left_out="key, value and headers")
