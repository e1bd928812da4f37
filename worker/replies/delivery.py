"""The reply stage: replies, error replies and dead letters go out; a record is done when the broker has them all."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import structlog
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from penstock.producer.errors import BackendError, Cancelled, Expired, InvalidRequest, PenstockError
from penstock.producer.wire.codec import encode_error
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.json_codec import encode_json_error
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.group import client_id
from penstock.worker.kafka.reply_destinations import Footprint, ReplyDestination
from penstock.worker.replies.dead_letters import DeadLetters, Fault
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer, Outlet
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields, unquoted_reason
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.telemetry.request_samples import correlation_text

_BLOCKED = "nothing that was sent there has been acknowledged lately, and what waits for it is enough"

log = structlog.get_logger("penstock.delivery")


@dataclass(slots=True)
class _Reply(OutAnswer):
    """A reply or an error reply on its way."""

    address: ReplyAddress
    made_at: float  # monotonic seconds


_Done = Callable[[Sequence[_Reply], KafkaError | None], None]


class Delivery:
    """Sends what records are owed, and calls `acknowledged` with the records of which the broker has all of it.

    Also with those whose answers were dropped, as their partition was given up. They count as no outcome.

    `replied` is called with the seconds from a reply's making to its acknowledgement. `count` is called with an outcome
    and a number of replies: `ok` once the broker has them, or the code of the error that took their place.
    """

    def __init__(
        self,
        outlet: Outlet,
        backpressure: Backpressure,
        acknowledged: Callable[[Sequence[PendingRecord]], None],
        replied: Callable[[float], None],
        count: Callable[[str, int], None],
        group_id: str,
        worker: int,
    ) -> None:
        """`worker`: the member's number on its machine. Dead letters name it and the group."""
        self._outlet = outlet
        self._dead_letters = DeadLetters(outlet, self._pay, group_id, client_id(worker))
        self.dead_letters: Mapping[str, int] = self._dead_letters.counts  # by outcome
        self._backpressure = backpressure
        self._destinations = backpressure.destinations
        self._acknowledged = acknowledged
        self._replied_after = replied
        self._count = count

    def reply(self, requests: Iterable[PendingRequest], values: Iterable[bytes]) -> None:
        """Answer records with their results, encoded."""
        answers = [(one.record, one.address, value) for one, value in zip(requests, values, strict=True)]
        self._send(_replies(answers, self._replied))

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Answer records with errors. Keep the originals of those at fault as dead letters.

        Requests that are late, refused or cancelled leave none: their clients know, and may send them again. Without an
        address the dead letter is the only answer.
        """
        rejected = list(rejections)
        kinds: dict[tuple[str, str], list[Rejection]] = {}
        for one in rejected:
            reason = "" if _is_transient(one.error) else unquoted_reason(one.error)
            kinds.setdefault((one.error.code, reason), []).append(one)
        for kind in kinds.values():
            self._reject(kind)
        self._keep([(one.record, None if _is_told(one) else Fault.of(one.error)) for one in rejected])

    def _reject(self, rejections: Sequence[Rejection]) -> None:
        """Answer records that are at fault alike, or late or refused with one code."""
        _log(rejections)
        is_only_answer = _is_transient(rejections[0].error)
        self._send(_error_replies(rejections, self._only_answer_sent if is_only_answer else self._error_replied))
        for record, _, error in rejections:
            record.note_error(error)

    def _send(self, answers: Iterable[_Reply]) -> None:
        for destination, chosen in _by_destination(answers):
            held, is_blocked = _held(chosen), self._destinations.is_blocked(destination)
            self._backpressure.add_reply_bytes(held.reply_bytes)
            self._destinations.sent(destination, held)
            if is_blocked:
                asyncio.get_running_loop().call_soon(chosen[0].done, chosen, KafkaError(_BLOCKED))
            else:
                self._outlet.put(destination[0], destination[1], chosen)

    def _replied(self, answers: Sequence[_Reply], error: KafkaError | None) -> None:
        self._note_ended(answers, error)
        if error is None:
            self._count("ok", len(answers))
            self._replied_after(time.monotonic() - answers[0].made_at)
            self._acknowledged([answer.origin for answer in answers])
        elif isinstance(error, AnswerDropped):
            self._acknowledged([answer.origin for answer in answers])
        elif isinstance(error, MessageSizeTooLargeError):
            # The addresses are good, so the clients are told: with fewer sequences the replies may fit.
            self._count(InvalidRequest.code, len(answers))
            self.reject([Rejection(answer.origin, answer.address, _reply_too_large(answer)) for answer in answers])
        else:
            self._count(BackendError.code, len(answers))
            self._keep_undeliverable(answers, error)

    def _only_answer_sent(self, answers: Sequence[_Reply], error: KafkaError | None) -> None:
        """As `_error_replied`, for requests without a dead letter: they get one if the reply topic takes no error."""
        if _is_refused(error):
            self._keep_undeliverable(answers, error)
        self._error_replied(answers, error)

    def _error_replied(self, answers: Sequence[_Reply], error: KafkaError | None) -> None:
        self._note_ended(answers, error)
        if _is_refused(error):
            named = record_fields(answers[0].origin, len(answers))
            log.warning("error_reply_undeliverable", records=len(answers), error=repr(error), **named)
        self._pay([answer.origin for answer in answers])

    def _note_ended(self, answers: Sequence[_Reply], error: KafkaError | None) -> None:
        for destination, ended in _by_destination(answers):
            held = _held(ended)
            self._backpressure.add_reply_bytes(-held.reply_bytes)
            self._destinations.ended(destination, held, acknowledged=error is None)

    def _keep_undeliverable(self, answers: Sequence[_Reply], error: KafkaError) -> None:
        """The reply topic does not take the answers: dead letters say so, so that the requests are not lost."""
        named = record_fields(answers[0].origin, len(answers))
        log.warning("reply_undeliverable", records=len(answers), error=repr(error), **named)
        undelivered = BackendError(f"The reply could not be delivered: {error!r}")
        undelivered.__cause__ = error
        for answer in answers:
            answer.origin.note_error(undelivered)
        self._keep([(answer.origin, Fault.of(undelivered)) for answer in answers])

    def _keep(self, ended_together: Sequence[tuple[PendingRecord, Fault | None]]) -> None:
        for record, fault in ended_together:
            if fault is not None:
                record.owe()
        self._dead_letters.keep(ended_together)

    def _pay(self, records: Iterable[PendingRecord]) -> None:
        """The broker has one of the answers that each of these records is owed."""
        self._acknowledged([record for record in records if record.pay()])


def _log(rejections: Sequence[Rejection]) -> None:
    """One event for records that are rejected alike: the first of them, and their number."""
    record, address, error = rejections[0]
    log.info(
        "request_refused",
        code=error.code,
        reason=unquoted_reason(error),
        records=len(rejections),
        correlation_id=None if address is None else correlation_text(address.correlation_id),
        answered=address is not None,
        **record_fields(record, len(rejections)),
    )


def _error_replies(rejections: Iterable[Rejection], done: _Done) -> list[_Reply]:
    """To the records that have an address. Records that share an error share its bytes."""
    encoded: dict[tuple[PenstockError, bool], bytes] = {}
    answers = []
    for record, address, error in rejections:
        if address is not None:
            form = error, address.is_json
            if form not in encoded:
                encoded[form] = encode_json_error(error) if address.is_json else encode_error(error)
            record.owe()
            answers.append((record, address, encoded[form]))
    return _replies(answers, done)


def _replies(answers: Iterable[tuple[PendingRecord, ReplyAddress, bytes]], done: _Done) -> list[_Reply]:
    """The answers with these values, made now."""
    now = time.monotonic()
    return [
        _Reply(record.reply_key, value, address.headers(), done, record, address, now)
        for record, address, value in answers
    ]


def _is_transient(error: PenstockError) -> bool:
    """Whether nothing is wrong with the record, which may be answered when it is sent again."""
    return error.retriable or isinstance(error, Expired | Cancelled)


def _is_refused(error: KafkaError | None) -> TypeGuard[KafkaError]:
    """Whether an answer will not come, also not from the partition's next owner."""
    return error is not None and not isinstance(error, AnswerDropped)


def _is_told(rejection: Rejection) -> bool:
    """Whether an error reply is all that a record needs."""
    return rejection.address is not None and _is_transient(rejection.error)


def _by_destination(answers: Iterable[_Reply]) -> Iterable[tuple[ReplyDestination, list[_Reply]]]:
    found: defaultdict[ReplyDestination, list[_Reply]] = defaultdict(list)
    for answer in answers:
        found[answer.address.topic, answer.address.partition, answer.origin.from_bulk_topic].append(answer)
    return found.items()


def _held(answers: Sequence[_Reply]) -> Footprint:
    request_bytes = sum([answer.origin.held_bytes for answer in answers])
    return Footprint(len(answers), request_bytes, sum([len(answer.value or b"") for answer in answers]))


def _reply_too_large(answer: _Reply) -> InvalidRequest:
    """As for a reply that validation foresees to be too large; clients then send the same in parts."""
    return InvalidRequest(
        f"The reply of {_held([answer]).reply_bytes:,} bytes is larger than its topic takes; send fewer sequences."
    )
