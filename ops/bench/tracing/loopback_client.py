"""A client whose records are answered in this process, without Kafka and without a worker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np

from penstock.producer import Client
from penstock.producer.transport import exchange
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.codec import encode_reply
from penstock.producer.wire.headers import CORRELATION_ID
from penstock.producer.wire.messages import Reply

_MODEL = "null"
_NUM_PARTITIONS = 8
_REPLY = encode_reply(Reply(_MODEL, "null-384", vectors=np.zeros((1, 384), np.float32)))


@dataclass(slots=True)
class ReplyRecord:
    """A reply as the inbox gets it from its consumer."""

    headers: Sequence[tuple[str, bytes]]
    value: bytes
    offset: int = 0


class LoopbackOutbox(Outbox):
    """Acknowledges each record at once. Its reply comes in the next turn of the event loop."""

    def __init__(self, client: Client) -> None:  # without the producer that an outbox has
        self._inbox = client._exchange._inbox

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float = 0.0) -> None: ...

    async def partitions(self, topic: str) -> int:
        return _NUM_PARTITIONS

    def known_partitions(self, topic: str) -> int:
        return _NUM_PARTITIONS

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        records[0].done(records, None)
        for record in records:
            correlation = [header for header in record.headers if header[0] == CORRELATION_ID]
            asyncio.get_running_loop().call_soon(self._inbox._receive, ReplyRecord(correlation, _REPLY))


@asynccontextmanager
async def loopback_client() -> AsyncIterator[Client]:
    """A client that is started. Each of its calls has a record of its own."""
    client = Client(model=_MODEL, bootstrap_servers="nowhere:1", batch_calls=False)
    with (
        mock.patch.object(exchange, "ensure_topics", mock.AsyncMock()),
        mock.patch.object(client._exchange._inbox, "start", mock.AsyncMock()),
        mock.patch.object(client._exchange, "_outbox", LoopbackOutbox(client)),
    ):
        async with client:
            yield client
