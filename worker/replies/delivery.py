"""The reply stage: replies, error replies and dead letters go out; a record is done when the broker has them all."""

from collections.abc import Callable

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.errors import InvalidRequest
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.codec import encode_error, encode_reply
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Reply
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.replies.dead_letters import DeadLetters, reply_key
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, Rejection

log = structlog.get_logger("penstock.delivery")


class Delivery:
    """Sends what a record is owed, and calls `acknowledged` once a record, when the broker has all of it."""

    def __init__(
        self, outbox: Outbox, backpressure: Backpressure, acknowledged: Callable[[PendingRecord], None]
    ) -> None:
        self._outbox = outbox
        self._dead_letters = DeadLetters(outbox)
        self._backpressure = backpressure
        self._acknowledged = acknowledged

    def reply(self, request: PendingRequest, reply: Reply) -> None:
        """Answer a record with its results."""
        record, address = request.record, request.address
        value = encode_reply(reply)

        def done(error: KafkaError | None) -> None:
            self._backpressure.reply_bytes -= len(value)
            if error is None:
                self._acknowledged(record)
            elif isinstance(error, MessageSizeTooLargeError):
                # The address is good, so the client is told: with fewer sequences the reply may fit.
                self.reject(Rejection(record, address, _reply_too_large(len(value))))
            else:
                self._keep_undeliverable(record, error)

        self._send(record, address, value, done)

    def reject(self, rejection: Rejection) -> None:
        """Answer a record with an error. Keep the original as a dead letter, unless the client may retry.

        Without an address the dead letter is the only answer. A dead letter of a request that is sent again, as under
        overload, would double the work for nothing.
        """
        record, address, error = rejection.record, rejection.address, rejection.error
        log.info(
            "request_refused",
            code=error.code,
            reason=error.message[:500],
            topic=record.original.topic,
            partition=record.original.partition,
            offset=record.original.offset,
            answered=address is not None,
        )
        is_kept = address is None or not error.retriable
        num_owed = (address is not None) + is_kept

        def done() -> None:
            nonlocal num_owed
            num_owed -= 1
            if num_owed == 0:
                self._acknowledged(record)

        if address is not None:
            value = encode_error(error)

            def answered(problem: KafkaError | None) -> None:
                self._backpressure.reply_bytes -= len(value)
                if problem is not None:
                    log.warning("error_reply_undeliverable", offset=record.original.offset, error=repr(problem))
                done()

            self._send(record, address, value, answered)
        if is_kept:
            self._dead_letters.keep(record.original, error.code, error.message, done)

    def _send(
        self, record: PendingRecord, address: ReplyAddress, value: bytes, done: Callable[[KafkaError | None], None]
    ) -> None:
        self._backpressure.reply_bytes += len(value)
        answer = OutRecord(reply_key(record.original), value, address.headers(), done)
        self._outbox.put(address.topic, address.partition, answer)

    def _keep_undeliverable(self, record: PendingRecord, error: KafkaError) -> None:
        """The reply topic does not take the answer: a dead letter says so, so that the request is not lost."""
        original = record.original
        log.warning("reply_undeliverable", partition=original.partition, offset=original.offset, error=repr(error))
        reason = f"The reply could not be delivered: {error!r}"
        self._dead_letters.keep(original, "backend", reason, lambda: self._acknowledged(record))


def _reply_too_large(num_bytes: int) -> InvalidRequest:
    """As for a reply that validation foresees to be too large; clients then send the same in parts."""
    return InvalidRequest(f"The reply of {num_bytes:,} bytes is larger than its topic takes; send fewer sequences.")
