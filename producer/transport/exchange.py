"""One record out, its answer in: the outbox, the inbox and what ties them, behind a single call."""

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
from penstock.producer.wire.topics import request_topic

_NUM_PARTITIONS = 8  # of topics that the client has to create
_SWEEP_S = 0.1
# Between two sends of a refused record: up to this long, up to twice as long each time, and at most the last. Drawn at
# random from nothing to that ("full jitter"), or all whom one overload refused would come back in the same moment.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 60.0
_TRIES = 4  # of what `Overloaded` refuses, where somebody waits: more would be load without hope


class Exchange:
    """Request and reply over Kafka, for one model. Everything in flight is bounded, has a deadline, and ends."""

    def __init__(self, settings: ClientSettings, *, patient: bool = False) -> None:
        """`patient`: overload, too, is waited out until the deadline; nobody waits for the answers at once."""
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
        self._places = asyncio.Semaphore(settings.max_in_flight)
        self._num_partitions = 0
        self._patient = patient
        self._open = False
        self._closing = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and find the topics; waits for the broker, logging, as long as it takes.

        Raises:
            InvalidRequest: there is no such topic, or it is not for this client.
            BackendError: Kafka refuses something else.
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
        await ensure_topics(settings.bootstrap_servers, [self._topic, settings.reply_topic], _NUM_PARTITIONS)
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
            self._places.release()  # one more: each caller that waits is woken in turn, and passes it on
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

        Retriable refusals are sent again after growing pauses. Meanwhile the record keeps its place among those in
        flight, so that who is refused does not send ever more.

        Raises:
            PenstockError: what the worker answered, `Expired` after the deadline, or `ShuttingDown`.
        """
        value = encode_request(request)
        if self._places.locked():
            await self._wait_for_place(deadline)
        else:
            await self._places.acquire()  # at once, and without the price of a timeout
        place = _Place(self._places)
        try:
            tries = 1
            while isinstance(reply := await self._ask_once(value, deadline, place), ErrorReply):
                await self._pause_after(reply.exception(), tries, deadline)
                tries += 1
            return reply
        finally:
            place.leave()

    async def _ask_once(self, value: bytes, deadline: float, place: "_Place") -> Reply | ErrorReply:
        correlation_id = next(self._ids)
        try:
            return await self._post(correlation_id, value, deadline, place)
        finally:
            self._inbox.forget(correlation_id)

    async def _pause_after(self, error: PenstockError, tries: int, deadline: float) -> None:
        """Wait until it may be sent again; raises the error where that is never."""
        is_last = isinstance(error, Overloaded) and tries >= _TRIES and not self._patient
        pause_s = random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16)))
        if not error.retriable or is_last or time.time() + pause_s > deadline:
            raise error
        await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Ends at once when the client is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _wait_for_place(self, deadline: float) -> None:
        """A place among the requests in flight, waited for no longer than the deadline allows."""
        try:
            async with asyncio.timeout(deadline - time.time()):
                await self._places.acquire()
        except TimeoutError as error:
            raise Expired("The deadline passed while earlier requests were on their way.") from error

    def _post(self, correlation_id: bytes, value: bytes, deadline: float, place: "_Place") -> Answer:
        """Hand the record over to Kafka; the future is its answer's."""
        self.check_open()
        inbox = self._inbox
        answer = inbox.expect(correlation_id, deadline)
        place.holders += 1

        def sent(error: Exception | None) -> None:
            place.leave()
            if error is not None:
                reason = f"The request record of {len(value):,} bytes was not sent: {error}"
                is_refused = isinstance(error, REFUSED)
                inbox.fail(correlation_id, InvalidRequest(reason) if is_refused else BackendError(reason))

        headers = request_headers(correlation_id, self._settings.reply_topic, inbox.partition, int(deadline * 1000))
        key = content_key(value)
        self._outbox.put(self._topic, partition_for(key, self._num_partitions), OutRecord(key, value, headers, sent))
        return answer

    async def _sweep(self) -> None:
        """Fail what is past its deadline."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._inbox.expire(time.time(), _late)


class _Place:
    """A place among those in flight, held by the caller and by the unsent record: neither outlives the bound alone."""

    __slots__ = ("_places", "holders")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self.holders = 1

    def leave(self) -> None:
        """One holder is through; the last gives the place back."""
        self.holders -= 1
        if self.holders == 0:
            self._places.release()


def _late() -> PenstockError:
    return Expired("No answer came before the deadline.")


def _correlation_ids() -> Iterator[bytes]:
    prefix = os.urandom(8)
    return (prefix + count.to_bytes(8, "big") for count in itertools.count())
