"""A client whose outbox, broker and worker are a function, for tests of what it sends and what it makes of replies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from penstock.producer import Client, PenstockError
from penstock.producer.errors import TooLong
from penstock.producer.transport import exchange as module
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.codec import decode_request, encode_error, encode_reply
from penstock.producer.wire.headers import CANCEL, CORRELATION_ID
from penstock.producer.wire.messages import Reply, Request

Answer = Callable[[Request], Reply | PenstockError | None]


@dataclass
class Received:
    """The fields of a record that the inbox reads."""

    headers: list[tuple[str, bytes]]
    value: bytes
    offset: int = 0


class Loop:
    """Stands for the outbox, the broker and a worker: each record is answered by `answer`, None meaning never."""

    def __init__(self, client: Client, answer: Answer, times: int) -> None:
        self.requests: list[Request] = []
        self.records: list[OutRecord] = []
        self.cancellations: list[tuple[int, OutRecord]] = []  # with their partitions
        self.partitions_of: list[int] = []  # of each record
        self.topics: set[str] = set()
        self.waiting = 0  # requests that were not answered
        self._client = client
        self._answer = answer
        self._times = times
        self._unanswered = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> None: ...

    async def partitions(self, topic: str) -> int:
        return 8

    def known_partitions(self, topic: str) -> int:
        return 8

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(300):
            while self.waiting < count:
                self._unanswered.clear()
                await self._unanswered.wait()

    def put(self, topic: str, partition: int, records: Sequence[OutRecord]) -> None:
        [record] = records
        record.done(records, None)
        self.topics.add(topic)
        if CANCEL in dict(record.headers):
            self.cancellations.append((partition, record))
            return
        self.partitions_of.append(partition)
        request = decode_request(record.value)
        self.requests.append(request)
        self.records.append(record)
        answer = self._answer(request)
        if answer is None:
            self.waiting += 1
            self._unanswered.set()
            return
        value = encode_error(answer) if isinstance(answer, PenstockError) else encode_reply(answer)
        correlation = [(name, data) for name, data in record.headers if name == CORRELATION_ID]
        for _ in range(self._times):
            asyncio.get_running_loop().call_soon(self._client._exchange._inbox._receive, Received(correlation, value))


def first_ids(request: Request) -> Reply:
    """Answers each sequence with its first id, its length and a zero."""
    assert request.tokens is not None
    sequences = np.split(request.tokens.ids, np.cumsum(request.tokens.lens)[:-1])
    vectors = np.array([[ids[0], len(ids), 0] for ids in sequences], np.float32)
    return Reply("m", "r", vectors=vectors)


def refusing_x(request: Request) -> Reply | PenstockError:
    """Answers texts with zeros, and refuses as a worker those that are, or whose second part is, an x."""
    assert request.text is not None
    faults = {index: TooLong("Given: 600") for index, text in enumerate(request.text) if text[-1] == "x"}
    if faults:
        return TooLong(f"Text {min(faults)}: Given: 600", faults)
    return Reply("m", "r", vectors=np.zeros((len(request.text), 3), np.float32))


@asynccontextmanager
async def connected(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, *, times: int = 1, **settings: Any
) -> AsyncIterator[tuple[Client, Loop]]:
    client = Client(model="m", bootstrap_servers="nowhere:1", **settings)
    loop = stand_in(monkeypatch, client, answer, times)
    async with client:
        yield client, loop


def stand_in(monkeypatch: pytest.MonkeyPatch, client: Client, answer: Answer, times: int = 1) -> Loop:
    """Replace what a client connects to, before it starts."""

    async def nothing(*args: object) -> None: ...

    loop = Loop(client, answer, times)
    monkeypatch.setattr(module, "ensure_topics", nothing)
    monkeypatch.setattr(client._exchange._inbox, "start", nothing)
    monkeypatch.setattr(client._exchange, "_outbox", loop)
    return loop


async def within(seconds: float, call: Awaitable[Any]) -> Any:
    """The result; an AssertionError when it takes too long, so that a call that hangs is told from one that expired."""
    try:
        return await asyncio.wait_for(call, seconds)
    except TimeoutError:
        raise AssertionError(f"The call was still waiting after {seconds} s.") from None


class Pauses:
    """Stands for the time between two sends: it passes at once. Counts from the real time on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
        self.seconds: list[float] = []
        began, started = time.time(), time.monotonic()
        monkeypatch.setattr(time, "time", lambda: began + sum(self.seconds))
        monkeypatch.setattr(module, "monotonic", lambda: started + sum(self.seconds))
        monkeypatch.setattr(client._exchange, "_pause", self._pause)

    async def _pause(self, seconds: float) -> None:
        self.seconds.append(seconds)
