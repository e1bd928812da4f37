"""Answers out: replies, error replies and dead letters; a record is finished when the broker has acknowledged them."""

import asyncio
import hashlib
from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.errors import PenstockError
from penstock.producer.headers import ERROR_CODE, ReplyAddress
from penstock.producer.messages import Reply
from penstock.producer.outbox import Outbox, OutRecord
from penstock.producer.topics import dead_letter_topic
from penstock.producer.wire import encode_error, encode_reply
from penstock.worker.held import Held
from penstock.worker.inflight import InFlight, KafkaRecord

_RETRY_S = 5.0

log = structlog.get_logger("penstock.delivery")

Finished = Callable[[KafkaRecord], None]


class Delivery:
    """Sends what a record is owed. `finished` is called once a record, when everything it is owed is acknowledged."""

    def __init__(self, outbox: Outbox, held: Held, finished: Finished) -> None:
        self._outbox = outbox
        self._held = held
        self._finished = finished

    def reply(self, inflight: InFlight, reply: Reply) -> None:
        """Answer a record with its results."""
        record = inflight.record
        value = encode_reply(reply)

        def done(error: KafkaError | None) -> None:
            self._held.reply_bytes -= len(value)
            if error is None:
                self._finished(record)
            else:
                self._undeliverable(record, error)

        self._send_reply(record, inflight.address, value, done)

    def refuse(self, record: KafkaRecord, address: ReplyAddress | None, error: PenstockError) -> None:
        """Answer a record with an error, and keep the original as a dead letter.

        `address` is None when the record names no place that may be answered: then the dead letter is all there is.
        """
        log.info(
            "request_refused",
            code=error.code,
            reason=error.message[:500],
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            answered=address is not None,
        )
        owed = 1 if address is None else 2

        def done(_: KafkaError | None) -> None:
            nonlocal owed
            owed -= 1
            if owed == 0:
                self._finished(record)

        if address is not None:
            value = encode_error(error)

            def answered(problem: KafkaError | None) -> None:
                self._held.reply_bytes -= len(value)
                if problem is not None:
                    log.warning("error_reply_undeliverable", offset=record.offset, error=repr(problem))
                done(None)

            self._send_reply(record, address, value, answered)
        self._dead_letter(record, error.code, error.message, done)

    def _send_reply(
        self, record: KafkaRecord, address: ReplyAddress, value: bytes, done: Callable[[KafkaError | None], None]
    ) -> None:
        self._held.reply_bytes += len(value)
        self._outbox.put(address.topic, address.partition, OutRecord(reply_key(record), value, address.headers(), done))

    def _undeliverable(self, record: KafkaRecord, error: KafkaError) -> None:
        """The reply topic does not take the answer: the request is kept as a dead letter, so that it is not lost."""
        log.warning("reply_undeliverable", partition=record.partition, offset=record.offset, error=repr(error))
        self._dead_letter(
            record, "backend", f"The reply could not be delivered: {error!r}", lambda _: self._finished(record)
        )

    def _dead_letter(
        self, record: KafkaRecord, code: str, reason: str, done: Callable[[KafkaError | None], None]
    ) -> None:
        topic = dead_letter_topic(record.topic)
        headers = [
            *record.headers,
            (ERROR_CODE, code.encode()),
            ("penstock-error-message", reason[:1000].encode()),
            ("penstock-source", f"{record.topic}-{record.partition}-{record.offset}".encode()),
        ]

        def sent(error: KafkaError | None) -> None:
            if isinstance(error, MessageSizeTooLargeError) and record.value:
                # The headers above can make a record that just fitted too large: keep the rest and say so.
                log.warning("dead_letter_without_value", offset=record.offset, value_bytes=len(record.value))
                note = ("penstock-value-left-out-bytes", str(len(record.value)).encode())
                self._outbox.put(topic, None, OutRecord(reply_key(record), b"", [*headers, note], done))
                return
            if error is None:
                done(None)
                return
            # Its offset stays uncommitted until there is such a topic that may be written to: nothing is dropped.
            log.error(
                "dead_letter_undeliverable", topic=topic, offset=record.offset, error=repr(error), retry_s=_RETRY_S
            )
            asyncio.get_running_loop().call_later(_RETRY_S, self._outbox.put, topic, None, letter)

        letter = OutRecord(record.key if record.key is not None else reply_key(record), record.value, headers, sent)
        self._outbox.put(topic, None, letter)


def reply_key(record: KafkaRecord) -> bytes:
    """The same for every answer to one record, also after a crash and a second run, so that duplicates show."""
    source = f"{record.topic}-{record.partition}-{record.offset}"
    return hashlib.blake2b(source.encode(), digest_size=16).digest()
