"""A worker's own stages in this process, fed from memory, over an outbox that acknowledges at once.

Fetches and commits are left out. Everything else is the product's: ledger, validation, preparation, cache, dispatcher,
replies. The engine is the null engine.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from penstock.cache import ResponseCache
from penstock.engine import NullEngine
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.codec import decode_reply, encode_request
from penstock.producer.wire.headers import TRACEPARENT, request_headers
from penstock.producer.wire.messages import Reply, Request, Tokens
from penstock.scheduler import LearnedCost, fit_cost_table
from penstock.worker import WorkerSettings, pipeline
from penstock.worker.batching.encoder_model import EncoderModel
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.resolved_settings import resolve
from penstock.worker.telemetry.traces import NO_TRACES, Traces
from penstock.worker.worker import Worker

MODEL = "null"
NUM_IDS = 15  # Banking77's mean
REPLY_TOPIC = "penstock.replies.bench"
_TTL_S = 86_400.0
_SOURCE = ("penstock.requests.null", 0)
_POLL_RECORDS = 1024
_MOST_UNANSWERED = 4096

Ids = npt.NDArray[np.int32]


@dataclass(slots=True)
class FetchedRecord:
    """A request as the consumer hands it out."""

    value: bytes | None
    offset: int
    headers: Sequence[tuple[str, bytes]]
    timestamp: int
    topic: str = _SOURCE[0]
    partition: int = _SOURCE[1]
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over records."""

    num_sequences: int
    num_cached: int
    wall_s: float
    cpu_s: float  # of all threads of this process

    @property
    def per_s(self) -> float:
        """Sequences answered a second."""
        return self.num_sequences / self.wall_s

    @property
    def cpu_us(self) -> float:
        """Processor microseconds a sequence."""
        return self.cpu_s / self.num_sequences * 1e6


class NullOutbox:
    """Acknowledges records in the next turn of the event loop. Keeps their values until they are taken."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.acknowledged = asyncio.Event()

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        self.values += [record.value for record in records]
        asyncio.get_running_loop().call_soon(self._acknowledge, records)

    def _acknowledge(self, records: Sequence[OutRecord]) -> None:
        records[0].done(records, None)
        self.acknowledged.set()


class InProcessWorker:
    """A worker and its outbox; `run` takes values of requests through it."""

    def __init__(self, worker: Worker, outbox: NullOutbox, traceparent: Callable[[], bytes] | None) -> None:
        self._pipeline = worker.pipeline
        self._outbox = outbox
        self._traceparent = traceparent
        self._next_offset = 0

    async def run(self, values: Sequence[bytes], flush: Callable[[], object] | None = None) -> Pass:
        """Answer these requests. Returns when each has its reply, without waiting for the cache's writes.

        `flush` is measured too, after the last reply.
        """
        records = self._records(values)
        self._outbox.values.clear()
        calm_garbage_collection()
        started, cpu = time.perf_counter(), time.process_time()
        for start in range(0, len(records), _POLL_RECORDS):
            self._pipeline.fetched.put(records[start : start + _POLL_RECORDS])
            while self._pipeline.fetched.can_take(bulk=False):
                await self._pipeline.enqueue(self._pipeline.fetched.take(bulk=False))
            await self._until_unanswered(_MOST_UNANSWERED)
        await self._until_unanswered(0)
        if flush is not None:
            flush()
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        replies = [decode_reply(value) for value in self._outbox.values]
        found = [reply for reply in replies if isinstance(reply, Reply)]
        if len(found) != len(values):
            raise RuntimeError(f"{len(found)} of {len(values)} requests were answered. This is a bug.")
        num_sequences = sum([0 if one.vectors is None else len(one.vectors) for one in found])
        return Pass(num_sequences, sum([one.cached for one in found]), wall_s, cpu_s)

    async def write(self) -> None:
        """Wait for the cache's writes."""
        if self._pipeline.cache is not None:
            await self._pipeline.cache.close()

    async def _until_unanswered(self, most: int) -> None:
        while self._pipeline.ledger.num_unfinished > most:
            self._outbox.acknowledged.clear()
            await self._outbox.acknowledged.wait()

    def _records(self, values: Sequence[bytes]) -> list[FetchedRecord]:
        first, self._next_offset = self._next_offset, self._next_offset + len(values)
        now_ms = int(time.time() * 1e3)
        return [
            FetchedRecord(value, offset, self._headers(offset), now_ms) for offset, value in enumerate(values, first)
        ]

    def _headers(self, offset: int) -> list[tuple[str, bytes]]:
        headers = request_headers(struct.pack("<Q", offset), REPLY_TOPIC, 0, None)
        return headers if self._traceparent is None else [*headers, (TRACEPARENT, self._traceparent())]


@asynccontextmanager
async def in_process_worker(
    cache: ResponseCache | None,
    *,
    traces: Traces = NO_TRACES,
    traceparent: Callable[[], bytes] | None = None,
    **settings: Any,
) -> AsyncIterator[InProcessWorker]:
    """A worker of the null engine with one lane. `traceparent` makes that header of a record; None: there is none."""
    engine = NullEngine(name=MODEL)
    given = WorkerSettings.model_validate({"model": MODEL, "lanes": 1, **settings})
    outbox = NullOutbox()
    async with AsyncExitStack() as stack:
        cost = LearnedCost(fit_cost_table([((NUM_IDS,), 1e-4)], padded=False))
        served = EncoderModel(engine, 1, cost)
        stack.push_async_callback(served.close, 5.0)
        with mock.patch.object(pipeline, "Outbox", return_value=outbox):
            worker = Worker(resolve(given, engine.info), served, tokenizer=None, cache=cache, traces=traces)
        yield InProcessWorker(worker, outbox, traceparent)


async def open_cache(path: Path, max_bytes: int = 1 << 30) -> ResponseCache:
    """A cache as the worker opens it."""
    return await ResponseCache(path, max_bytes=max_bytes, ttl_s=_TTL_S).open()


def random_ids(num_sequences: int, seed: int) -> Ids:
    """Sequences of `NUM_IDS` ids, no two alike."""
    return np.random.default_rng(seed).integers(1000, 30_000, (num_sequences, NUM_IDS), dtype=np.int32)


def request_values(ids: Ids, per_record: int) -> list[bytes]:
    """The values of requests with `per_record` sequences each."""
    return [
        encode_request(Request(MODEL, "embed", tokens=_tokens(ids[start : start + per_record])))
        for start in range(0, len(ids), per_record)
    ]


def _tokens(ids: Ids) -> Tokens:
    return Tokens(ids.reshape(-1).astype(np.uint32), (ids.shape[1],) * len(ids))
