"""Request and reply: one call that sends a record by the outbox and awaits its reply in the inbox."""

import asyncio
import contextlib
import itertools
import math
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from penstock.producer.errors import BackendError, Expired, InvalidRequest, Overloaded, PenstockError, ShuttingDown
from penstock.producer.settings import ClientSettings
from penstock.producer.tracing.switch import open_send_spans
from penstock.producer.transport.attempts import Attempts
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.transport.inbox import Answer, Inbox, Partial
from penstock.producer.transport.outbox import REFUSED, Outbox, OutRecord
from penstock.producer.transport.partitioner import StickyPartitioner
from penstock.producer.transport.permits import Permit, Permits
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CANCEL, TRACEPARENT, content_key, request_headers
from penstock.producer.wire.messages import STEPPED_TASKS, ErrorReply, Reply, Request
from penstock.producer.wire.topics import NUM_PARTITIONS, request_topic

if TYPE_CHECKING:
    from penstock.producer.tracing.tracing import SendSpan, SendSpans

_SWEEP_S = 0.1
# Pauses before a record is sent again double from the first bound to the last. Each is drawn at random, so that the
# records of one overload are not sent again at the same moment; its least share of the bound limits their number.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 60.0
_LEAST_SHARE = 0.1
_TRIES = 4  # of an online record that is answered with `Overloaded`
_CLOSE_S = 1.0  # for what is unsent when the client closes: cancellations, which are best effort


@dataclass(slots=True)
class _Sending(OutRecord):
    """One attempt to send a request."""

    value: bytes
    headers: list[tuple[str, bytes]]
    correlation_id: bytes
    permit: Permit
    span: "SendSpan | None" = None
    is_unsent: bool = True  # the broker has not acknowledged it


class Exchange:
    """Request and reply over Kafka for one model. Records in flight are bounded in number and by deadlines.

    A refused record is sent again as a whole, with its deadline: after `Overloaded` until it was sent four times, after
    `ShuttingDown`, or if patient, until its deadline. The pauses bound the latter to 9 + T/6 sends in T seconds.
    """

    def __init__(self, settings: ClientSettings, *, patient: bool = False) -> None:
        """`patient`: `Overloaded` is retried until the deadline, as bulk requests are."""
        client_id = self._client_id = f"penstock-client-{os.urandom(4).hex()}"
        self._settings = settings
        self._topic = settings.topic or request_topic(settings.model)
        self._cluster = KafkaCluster.of(settings)
        self._outbox = Outbox(self._cluster, client_id=client_id)
        self._inbox = Inbox(
            self._cluster,
            settings.reply_topic,
            client_id=client_id,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            isolation_level=settings.isolation_level,
        )
        self._ids = _correlation_ids()
        self._permits = Permits(settings.max_in_flight)  # replaced, as the next, by `start`
        self._partitioner = StickyPartitioner(1)
        self._patient = patient
        self._open = False
        self._closing = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self._spans: SendSpans | None = None  # None: no traces

    async def start(self) -> None:
        """Connect and find the topics, and log that the broker is waited for.

        Raises:
            KafkaUnreachable: no broker has answered within `connect_timeout_s`.
            InvalidRequest: the credentials are refused, a topic is missing, or this client may not use it.
            BackendError: any other refusal of Kafka.
        """
        try:
            async with self._cluster.patience():
                await self._start()
        except KafkaRefused as error:
            raise InvalidRequest(str(error)) from error
        except KafkaError as error:
            fault = InvalidRequest if isinstance(error, REFUSED) else BackendError
            topics = f"{self._topic} and {self._settings.reply_topic}"
            raise fault(f"Kafka at {self._settings.bootstrap_servers} refuses {topics}: {error}") from error

    async def _start(self) -> None:
        settings = self._settings
        await self._outbox.start()
        await ensure_topics(self._cluster, [self._topic, settings.reply_topic], NUM_PARTITIONS)
        self._permits = Permits(settings.max_in_flight)  # records that `close` dropped keep those of before
        self._partitioner = StickyPartitioner(await self._outbox.partitions(self._topic))
        await self._inbox.start(await self._outbox.partitions(settings.reply_topic))
        self._sweeper = asyncio.create_task(self._sweep())
        self._spans = open_send_spans(self._topic, self._client_id)
        self._closing.clear()
        self._open = True

    async def close(self) -> None:
        """Fail what is pending with `ShuttingDown` and disconnect. Safe to call twice."""
        if self._open:
            self._open = False
            self._closing.set()
            self._permits.refuse(math.inf, _closed)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self._inbox.stop(ShuttingDown("The client was closed before the answer came."))
        await self._outbox.stop(_CLOSE_S)
        if self._spans is not None:
            spans, self._spans = self._spans, None
            await spans.close()

    def check_open(self) -> None:
        """Raise `ShuttingDown` before `start` and after `close`."""
        if not self._open:
            raise _closed()

    async def ask(self, request: Request, attempts: Attempts, partial: Partial | None = None) -> Reply:
        """Send one record and await its answer, which may take several attempts. `partial` gets partial replies.

        The record keeps its permit in the pauses between them, so that overload does not raise the number of records in
        flight. Nothing is sent after the deadline. A cancelled call, or a closed client, cancels the request.

        Raises:
            PenstockError: the worker's error, `Expired` after the deadline, or `ShuttingDown`.
        """
        self.check_open()  # nothing would end the wait for a permit
        value = encode_request(request)
        key = content_key(value)
        permit = self._permits.take() or await self._permits.wait(attempts.deadline)
        try:
            while True:
                partition = self._partitioner.partition(key, len(value), monotonic())
                record = _Sending(key, value, [], self._sent, next(self._ids), permit)
                answer = self._post(record, partition, attempts, partial)
                try:
                    reply = await answer
                except BaseException as error:
                    self._give_up(request.task, record, partition, error)
                    raise
                if not isinstance(reply, ErrorReply):
                    return reply
                await self._pause_after(reply.exception(), attempts)
        finally:
            permit.release()

    def _give_up(self, task: str, record: "_Sending", partition: int, error: BaseException) -> None:
        """No answer has come to a record, or none is waited for any more."""
        self._inbox.forget(record.correlation_id)
        if isinstance(error, Expired) and record.is_unsent:
            servers = self._settings.bootstrap_servers
            reason = f"Kafka at {servers} did not take the request before its deadline. Does it answer?"
            raise Expired(reason) from error
        if isinstance(error, asyncio.CancelledError | ShuttingDown) and task in STEPPED_TASKS:
            self._cancel(record, partition)

    async def _pause_after(self, error: PenstockError, attempts: Attempts) -> None:
        """Wait until the record may be sent again; raises the error if it may not."""
        if not error.retriable:
            raise error
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempts.refused, 16))
        attempts.refused += 1
        is_last = isinstance(error, Overloaded) and attempts.refused >= _TRIES and not self._patient
        pause_s = random.uniform(_LEAST_SHARE * longest_s, longest_s)
        if is_last or monotonic() + pause_s >= attempts.deadline:
            raise error
        await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than the client is open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _post(self, record: "_Sending", partition: int, attempts: Attempts, partial: Partial | None) -> Answer:
        """Queue the record for sending; returns the future of its answer."""
        self.check_open()
        if monotonic() >= attempts.deadline:
            raise Expired("The deadline passed before the record was sent.")
        inbox, correlation_id = self._inbox, record.correlation_id
        answer = inbox.expect(correlation_id, attempts.deadline, partial)
        record.permit.retain()
        deadline_ms = int(attempts.unix_deadline * 1000)
        record.headers = request_headers(correlation_id, self._settings.reply_topic, inbox.partition, deadline_ms)
        if self._spans is not None:
            span = self._spans.start(partition, correlation_id, len(record.value), attempts.callers)
            if span is not None:
                record.span = span
                record.headers.append((TRACEPARENT, span.traceparent))
        self._outbox.put(self._topic, partition, [record])
        return answer

    def _sent(self, records: Sequence["_Sending"], error: Exception | None) -> None:
        """Called by the outbox with the requests that ended together."""
        for record in records:
            record.is_unsent = False
            record.permit.release()
            if error is not None:
                fault = InvalidRequest if isinstance(error, REFUSED) else BackendError
                reason = f"The request record of {len(record.value):,} bytes was not sent: {error}"
                self._inbox.fail(record.correlation_id, fault(reason))
        for record in records if self._spans is not None else ():  # last: an application's processor may raise
            if record.span is not None:
                record.span.end(error)

    def _cancel(self, record: "_Sending", partition: int) -> None:
        """Send the cancellation of a record behind it."""
        headers = request_headers(record.correlation_id, self._settings.reply_topic, self._inbox.partition, None)
        cancellation = OutRecord(record.key, b"", [*headers, (CANCEL, b"")], lambda *_: None)
        self._outbox.put(self._topic, partition, [cancellation])

    async def _sweep(self) -> None:
        """Fail expired requests, and learn of added partitions, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = monotonic()
            self._inbox.expire(now, _late)
            self._permits.refuse(now, _late)
            self._partitioner.resize(self._outbox.known_partitions(self._topic))


def _late() -> PenstockError:
    return Expired("No answer came before the deadline.")


def _closed() -> PenstockError:
    return ShuttingDown("The client is closed.")


def _correlation_ids() -> Iterator[bytes]:
    prefix = os.urandom(8)
    return (prefix + count.to_bytes(8, "big") for count in itertools.count())
