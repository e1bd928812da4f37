"""Answers out: replies, error replies and dead letters; a record is finished when the broker has acknowledged them."""

from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.errors import InvalidRequest, PenstockError
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.codec import encode_error, encode_reply
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Reply
from penstock.worker.kafka.backpressure import Held
from penstock.worker.replies.dead_letters import DeadLetters, reply_key
from penstock.worker.requests.record import InFlight, KafkaRecord

log = structlog.get_logger("penstock.delivery")

Finished = Callable[[KafkaRecord], None]


class Delivery:
    """Sends what a record is owed. `finished` is called once a record, when everything it is owed is acknowledged."""

    def __init__(self, outbox: Outbox, held: Held, finished: Finished) -> None:
        self._outbox = outbox
        self._dead_letters = DeadLetters(outbox)
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
            elif isinstance(error, MessageSizeTooLargeError):
                # The address is good, so whoever waits there is told: with fewer sequences the reply may fit.
                self.refuse(record, inflight.address, _reply_too_large(len(value)))
            else:
                self._undeliverable(record, error)

        self._send_reply(record, inflight.address, value, done)

    def refuse(self, record: KafkaRecord, address: ReplyAddress | None, error: PenstockError) -> None:
        """Answer a record with an error, and keep the original as a dead letter.

        `address` is None when the record names no place that may be answered: then the dead letter is all there is.
        There is none of what its sender is told to send again: under overload that would be twice the work for nothing.
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
        is_kept = address is None or not error.retriable
        owed = (address is not None) + is_kept

        def done() -> None:
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
                done()

            self._send_reply(record, address, value, answered)
        if is_kept:
            self._dead_letters.keep(record, error.code, error.message, done)

    def _send_reply(
        self, record: KafkaRecord, address: ReplyAddress, value: bytes, done: Callable[[KafkaError | None], None]
    ) -> None:
        self._held.reply_bytes += len(value)
        self._outbox.put(address.topic, address.partition, OutRecord(reply_key(record), value, address.headers(), done))

    def _undeliverable(self, record: KafkaRecord, error: KafkaError) -> None:
        """The reply topic does not take the answer: a dead letter says so, so that the request is not lost."""
        log.warning("reply_undeliverable", partition=record.partition, offset=record.offset, error=repr(error))
        reason = f"The reply could not be delivered: {error!r}"
        self._dead_letters.keep(record, "backend", reason, lambda: self._finished(record))


def _reply_too_large(num_bytes: int) -> InvalidRequest:
    """As for a reply that intake foresees to be too large; clients then send the same in parts."""
    return InvalidRequest(f"The reply of {num_bytes:,} bytes is larger than its topic takes; send fewer sequences.")
