"""Request and reply: one call that sends a record by the outbox and awaits its reply in the inbox."""

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator

from aiokafka.errors import KafkaError

from penstock.producer.errors import BackendError, Expired, InvalidRequest, Overloaded, PenstockError, ShuttingDown
from penstock.producer.settings import ClientSettings
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.transport.inbox import Answer, Inbox
from penstock.producer.transport.outbox import REFUSED, Outbox, OutRecord
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import content_key, partition_for, request_headers
from penstock.producer.wire.messages import ErrorReply, Reply, Request
from penstock.producer.wire.topics import OTHER_PARTITIONS, REQUEST_PARTITIONS, request_topic

_SWEEP_S = 0.1
# Pauses between tries double from the first bound to the last. Each is drawn from zero to its bound ("full jitter"),
# so that the records of one overload are not sent again at the same moment.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 60.0
_TRIES = 4  # of an online record that is answered with `Overloaded`


class Exchange:
    """Request and reply over Kafka for one model. Records in flight are bounded in number and by deadlines."""

    def __init__(self, settings: ClientSettings, *, patient: bool = False) -> None:
        """`patient`: `Overloaded` is retried until the deadline, as bulk requests are."""
        client_id = f"penstock-client-{os.urandom(4).hex()}"
        self._settings = settings
        self._topic = settings.topic or request_topic(settings.model)
        self._outbox = Outbox(settings.bootstrap_servers, client_id=client_id)
        self._inbox = Inbox(
            settings.bootstrap_servers,
            settings.reply_topic,
            client_id=client_id,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
        )
        self._ids = _correlation_ids()
        self._permits = asyncio.Semaphore(settings.max_in_flight)
        self._num_partitions = 0
        self._patient = patient
        self._open = False
        self._closing = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and find the topics; waits for the broker without limit, and logs it.

        Raises:
            InvalidRequest: a topic is missing, or this client may not use it.
            BackendError: any other refusal of Kafka.
        """
        try:
            await self._start()
        except KafkaError as error:
            fault = InvalidRequest if isinstance(error, REFUSED) else BackendError
            topics = f"{self._topic} and {self._settings.reply_topic}"
            raise fault(f"Kafka at {self._settings.bootstrap_servers} refuses {topics}: {error}") from error

    async def _start(self) -> None:
        settings = self._settings
        await self._outbox.start()
        await asyncio.gather(
            ensure_topics(settings.bootstrap_servers, [self._topic], REQUEST_PARTITIONS),
            ensure_topics(settings.bootstrap_servers, [settings.reply_topic], OTHER_PARTITIONS),
        )
        self._num_partitions = await self._outbox.partitions(self._topic)
        await self._inbox.start(await self._outbox.partitions(settings.reply_topic))
        self._sweeper = asyncio.create_task(self._sweep())
        self._closing.clear()
        self._open = True

    async def close(self) -> None:
        """Fail what is pending with `ShuttingDown` and disconnect. Safe to call twice."""
        if self._open:
            self._open = False
            self._closing.set()
            self._permits.release()  # one extra permit, which each waiting caller takes and releases in turn
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self._inbox.stop(ShuttingDown("The client was closed before the answer came."))
        await self._outbox.stop()

    def check_open(self) -> None:
        """Raises `ShuttingDown` before `start` and after `close`."""
        if not self._open:
            raise ShuttingDown("The client is closed.")

    async def ask(self, request: Request, deadline: float) -> Reply:
        """Send one record and await its answer; `deadline` is Unix time in seconds.

        Retriable errors are retried after growing pauses. The record keeps its permit in the pauses, so that overload
        does not raise the number of records in flight.

        Raises:
            PenstockError: the worker's error, `Expired` after the deadline, or `ShuttingDown`.
        """
        value = encode_request(request)
        if self._permits.locked():
            await self._wait_for_permit(deadline)
        else:
            await self._permits.acquire()  # does not wait, and needs no timeout
        permit = _Permit(self._permits)
        try:
            tries = 1
            while isinstance(reply := await self._ask_once(value, deadline, permit), ErrorReply):
                await self._pause_after(reply.exception(), tries, deadline)
                tries += 1
            return reply
        finally:
            permit.leave()

    async def _ask_once(self, value: bytes, deadline: float, permit: "_Permit") -> Reply | ErrorReply:
        correlation_id = next(self._ids)
        try:
            return await self._post(correlation_id, value, deadline, permit)
        finally:
            self._inbox.forget(correlation_id)

    async def _pause_after(self, error: PenstockError, tries: int, deadline: float) -> None:
        """Wait until the record may be sent again; raises the error if it may not."""
        is_last = isinstance(error, Overloaded) and tries >= _TRIES and not self._patient
        pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16)))
        if not error.retriable or is_last or time.time() + pause_s > deadline:
            raise error
        await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than the client is open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _wait_for_permit(self, deadline: float) -> None:
        """Acquire a permit, or raise `Expired` at the deadline."""
        try:
            async with asyncio.timeout(deadline - time.time()):
                await self._permits.acquire()
        except TimeoutError as error:
            raise Expired("The deadline passed while earlier requests were on their way.") from error

    def _post(self, correlation_id: bytes, value: bytes, deadline: float, permit: "_Permit") -> Answer:
        """Queue the record for sending; returns the future of its answer."""
        self.check_open()
        inbox = self._inbox
        answer = inbox.expect(correlation_id, deadline)
        permit.holders += 1

        def sent(error: Exception | None) -> None:
            permit.leave()
            if error is not None:
                reason = f"The request record of {len(value):,} bytes was not sent: {error}"
                is_refused = isinstance(error, REFUSED)
                inbox.fail(correlation_id, InvalidRequest(reason) if is_refused else BackendError(reason))

        headers = request_headers(correlation_id, self._settings.reply_topic, inbox.partition, int(deadline * 1000))
        key = content_key(value)
        self._outbox.put(self._topic, partition_for(key, self._num_partitions), OutRecord(key, value, headers, sent))
        return answer

    async def _sweep(self) -> None:
        """Fail expired requests, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._inbox.expire(time.time(), _late)


class _Permit:
    """A permit for one record in flight. It is released when both the caller and the unsent record let go of it."""

    __slots__ = ("_permits", "holders")

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits
        self.holders = 1

    def leave(self) -> None:
        """Let go of the permit; the last holder releases it."""
        self.holders -= 1
        if self.holders == 0:
            self._permits.release()


def _late() -> PenstockError:
    return Expired("No answer came before the deadline.")


def _correlation_ids() -> Iterator[bytes]:
    prefix = os.urandom(8)
    return (prefix + count.to_bytes(8, "big") for count in itertools.count())
