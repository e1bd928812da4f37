"""The load of the chaos suite: calls of real clients, and records of plain producers with every codec."""

import asyncio
import random
import struct
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack
import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from penstock.engine.types import Float32Array
from penstock.producer import Client
from penstock.producer.errors import PenstockError

REPLIES, RAW_REPLIES = "penstock.replies", "penstock.replies.raw"
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
_TICK_S = 0.1
_CALL_S = 90.0  # longer than any fault
_MOST_TOKENS = 24
_NUM_REPEATED = 500  # sequences that come again and again
_POISON_SHARE, _MALFORMED_SHARE, _LOST_SHARE, _BULK_SHARE = 0.005, 0.002, 0.002, 0.2
_BOMB_SHARE, _BOMB_BYTES = 0.0003, 6 << 20  # a few kilobytes on the wire, and larger than a request may be
_MOST_WAITING = 5000  # raw records without acknowledgement: then the producers wait

Ids = tuple[int, ...]


@dataclass(slots=True)
class Sent:
    """The load's own record of what it sent and got, for the checker."""

    acknowledged: set[bytes] = field(default_factory=set)  # correlation ids of raw records
    unacknowledged: int = 0  # raw records whose producer gave up; they may be in the topic
    results: list[tuple[Ids, Float32Array]] = field(default_factory=list)  # of calls
    call_errors: Counter[str] = field(default_factory=Counter)
    wrong_errors: list[str] = field(default_factory=list)  # errors that their calls did not deserve


class Traffic:
    """Sends requests until `is_over`. One event loop; `seed` decides every request, but not when it is sent."""

    def __init__(
        self, servers: str, model: str, topic: str, isolation: str, vocab_size: int, rate: float, seed: int
    ) -> None:
        """`isolation`: how clients read. `rate`: raw records a second; the calls go beside them, one after another."""
        self.sent = Sent()
        self.is_over = False
        self._servers = servers
        self._model = model
        self._topic = topic
        self._isolation = isolation
        self._poison = vocab_size - 1
        self._rate = rate
        self._random = random.Random(seed)
        self._repeated = [self._new_ids() for _ in range(_NUM_REPEATED)]
        self._waiting = 0

    async def run(self, num_callers: int) -> None:
        """Send until `is_over`, and return when every call has ended and every record is acknowledged or failed."""
        clients = [
            Client(
                bootstrap_servers=self._servers,
                model=self._model,
                batch_calls=share,
                timeout_s=_CALL_S,
                isolation_level=self._isolation,
            )
            for share in (True, False)
        ]
        async with clients[0], clients[1], asyncio.TaskGroup() as group:
            for number in range(num_callers):
                group.create_task(self._call(clients[number % 2]))
            group.create_task(self._send())

    async def _call(self, client: Client) -> None:
        while not self.is_over:
            ids = [self._ids() for _ in range(self._random.choice((1, 1, 1, 4)))]
            poisoned = any(self._poison in one for one in ids)
            try:
                rows = await client.embed(ids=[np.array(one) for one in ids])
            except PenstockError as error:
                self.sent.call_errors[error.code] += 1
                if error.code not in ({"backend", "expired", "overloaded"} if poisoned else {"expired", "overloaded"}):
                    self.sent.wrong_errors.append(f"a call of {ids} got {error!r}")
            else:
                self.sent.results += zip(ids, rows, strict=True)
                if poisoned:
                    self.sent.wrong_errors.append(f"a call of poison was answered: {ids}")
            await asyncio.sleep(0)

    async def _send(self) -> None:
        producers = [
            AIOKafkaProducer(
                bootstrap_servers=self._servers,
                acks="all",
                compression_type=codec,
                linger_ms=20,
                max_request_size=2 * _BOMB_BYTES,
                request_timeout_ms=10_000,
                retry_backoff_ms=200,
            )
            for codec in CODECS
        ]
        for producer in producers:
            await producer.start()
        bomber = producers[CODECS.index("gzip")]
        owed = 0.0
        while not self.is_over:
            owed = min(owed + self._rate * _TICK_S, 10 * self._rate)
            while owed >= 1 and self._waiting < _MOST_WAITING:
                owed -= 1
                await self._send_one(self._random.choice(producers), bomber)
            await asyncio.sleep(_TICK_S)
        async with asyncio.timeout(_CALL_S):
            while self._waiting:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(_TICK_S)
        for producer in producers:
            await producer.stop()

    async def _send_one(self, producer: AIOKafkaProducer, bomber: AIOKafkaProducer) -> None:
        """Send one record; bombs by `bomber`, which compresses. Its acknowledgement is awaited beside the next ones."""
        number = self._random.random()
        correlation_id = uuid.UUID(int=self._random.getrandbits(128)).bytes
        headers = [("kafka_correlationId", correlation_id)]
        if number > _LOST_SHARE:
            headers.append(("kafka_replyTopic", RAW_REPLIES.encode()))
        ids = self._ids()
        value = {"v": 1, "model": self._model, "task": "embed", "ids": _uint32(ids), "lens": _uint32((len(ids),))}
        body = msgpack.packb(value)
        if number > 1 - _MALFORMED_SHARE:
            body = self._random.randbytes(len(body))
        if abs(number - 0.5) < _BOMB_SHARE / 2:
            producer, body = bomber, bytes(_BOMB_BYTES)
        topic = self._topic + (".bulk" if self._random.random() < _BULK_SHARE else "")
        key = self._random.randbytes(8) if self._random.random() < 0.5 else None
        self._waiting += 1
        try:
            sending = await producer.send(topic, body, key=key, headers=headers)
        except KafkaError:
            self._ended(correlation_id, None)
        else:
            sending.add_done_callback(lambda done: self._ended(correlation_id, done))

    def _ended(self, correlation_id: bytes, done: "asyncio.Future[object] | None") -> None:
        self._waiting -= 1
        if done is None or done.cancelled() or done.exception() is not None:
            self.sent.unacknowledged += 1
        else:
            self.sent.acknowledged.add(correlation_id)

    def _ids(self) -> Ids:
        """Half of all sequences are repeated, early ones more often than late ones."""
        number = self._random.random()
        if number < 0.5:
            return self._repeated[int(self._random.random() ** 3 * _NUM_REPEATED)]
        if number > 1 - _POISON_SHARE:
            return (*self._new_ids(), self._poison)
        return self._new_ids()

    def _new_ids(self) -> Ids:
        length = self._random.randint(1, _MOST_TOKENS)
        return tuple([self._random.randrange(1, self._poison) for _ in range(length)])


def _uint32(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)
