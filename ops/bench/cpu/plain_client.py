"""A client with aiokafka alone: the client side of the FastStream alternative."""

import asyncio
import contextlib
import itertools
import json
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import ensure_topics

REQUESTS, REPLIES = "plain.requests", "plain.replies"
ID_BYTES = 16


class PlainClient:
    """Sends requests as JSON with an id. A reply is that id followed by the float32 bytes of the vector."""

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        """`timeout_s`: of a call."""
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._ids = itertools.count()
        self._expected: dict[str, asyncio.Future[bytes]] = {}

    async def __aenter__(self) -> Self:
        await ensure_topics(KafkaCluster(self._bootstrap_servers), [REQUESTS, REPLIES], 1)
        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap_servers)
        await self._producer.start()
        await self._consumer.start()
        replies = TopicPartition(REPLIES, 0)
        self._consumer.assign([replies])
        await self._consumer.seek_to_end(replies)
        await self._consumer.position(replies)
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        await self._consumer.stop()
        await self._producer.stop()

    async def call(self, text: str) -> bytes:
        """Bytes of the vector. Raises TimeoutError."""
        request_id = f"{next(self._ids):0{ID_BYTES}x}"
        answer = self._expected[request_id] = asyncio.get_running_loop().create_future()
        await self._producer.send(REQUESTS, json.dumps({"id": request_id, "text": text}).encode())
        try:
            return await asyncio.wait_for(answer, self._timeout_s)
        finally:
            del self._expected[request_id]

    async def _read(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    answer = self._expected.get(record.value[:ID_BYTES].decode())
                    if answer is not None and not answer.done():
                        answer.set_result(record.value[ID_BYTES:])
