"""The async client: requests out, answers in, everything bounded.

async with Client(bootstrap_servers="localhost:9092", model="all-MiniLM-L6-v2") as client:
    vectors = await client.embed(["a text", "another"])
"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import structlog

from penstock.producer.errors import (
    EmptyInput,
    Expired,
    InvalidRequest,
    PenstockError,
    ShuttingDown,
)
from penstock.producer.headers import content_key, partition_for, request_headers
from penstock.producer.inbox import Inbox
from penstock.producer.kafka import ensure_topics
from penstock.producer.messages import Classification, ErrorReply, Options, Reply, Request, Text, join_tokens
from penstock.producer.outbox import Outbox, OutRecord
from penstock.producer.settings import ClientSettings
from penstock.producer.tokenization import Tokenizer
from penstock.producer.topics import request_topic
from penstock.producer.wire import encode_request

Vector = npt.NDArray[np.floating[Any]]
Row = Vector | Classification
Sequences = Sequence[Text] | Sequence[npt.ArrayLike]

_NUM_PARTITIONS = 8  # of topics that the client has to create
_RECORD_TEXT_CHARS = 256 * 1024  # split records of long texts well below the broker's usual 1 MiB
_SWEEP_S = 0.1
_RETRY_S = 0.5

log = structlog.get_logger("penstock.client")


class Client:
    """Requests to one model. Use as an async context manager, from one event loop; calls may run concurrently.

    Every method raises from the tree of `penstock.producer.errors`. After `close`, pending and later calls fail with
    `ShuttingDown`; a call never outlives its deadline (`timeout_s`, sent along with it) by more than a moment.
    """

    def __init__(self, *, tokenizer: str | Path | None = None, **settings: Any) -> None:
        """`settings` are the fields of `ClientSettings` (model=…, bootstrap_servers=…); the rest comes from PENSTOCK_*.

        `tokenizer` is a checkpoint directory: texts are then tokenized here, in threads, and not by the worker.
        """
        self._settings = ClientSettings(**settings)
        self._topic = self._settings.topic or request_topic(self._settings.model)
        self._tokenizer = Tokenizer.from_directory(tokenizer) if tokenizer is not None else None
        client_id = f"penstock-client-{os.urandom(4).hex()}"
        self._outbox = Outbox(self._settings.bootstrap_servers, client_id=client_id)
        self._inbox = Inbox(
            self._settings.bootstrap_servers,
            self._settings.reply_topic,
            client_id=client_id,
            fetch_max_wait_ms=self._settings.fetch_max_wait_ms,
        )
        self._ids = _correlation_ids()
        self._in_flight = asyncio.Semaphore(self._settings.max_in_flight)
        self._num_partitions = 0
        self._open = False
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and find the topics; waits for the broker, logging, as long as it takes."""
        await self._outbox.start()
        await ensure_topics(
            self._settings.bootstrap_servers, [self._topic, self._settings.reply_topic], _NUM_PARTITIONS
        )
        self._num_partitions = await self._outbox.partitions(self._topic)
        await self._inbox.start(await self._outbox.partitions(self._settings.reply_topic))
        self._sweeper = asyncio.create_task(self._sweep())
        self._open = True

    async def close(self) -> None:
        """Fail what is pending with `ShuttingDown` and disconnect. Safe to call twice."""
        self._open = False
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        await self._inbox.stop(ShuttingDown("The client was closed before the answer came."))
        await self._outbox.stop()
        if self._tokenizer is not None:
            self._tokenizer.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def embed(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        dtype: str = "float32",
        timeout_s: float | None = None,
    ) -> Vector:
        """Vectors of texts, or of sequences of token ids (special tokens included).

        Returns:
            [n, dim]; for a single text (not in a list) [dim]. Many texts are split over several records.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the others' results beside it.
        """
        options = Options(pooling=pooling, normalize=normalize, truncate=truncate, dtype=dtype)
        rows = await self._all("embed", texts, ids, options, timeout_s)
        first: Vector = rows[0]
        if isinstance(texts, str):
            return first
        return np.stack(rows) if len(rows) > 1 else first.reshape(1, -1)

    async def classify(
        self,
        texts: str | Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        top_k: int = 1,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> list[Classification]:
        """The best `top_k` labels (0: all) of each text or sequence of token ids, in order; a lone text gives one row.

        Raises:
            PenstockError: the first sequence's error; use `map` to get the others' results beside it.
        """
        return await self._all("classify", texts, ids, Options(top_k=top_k, truncate=truncate), timeout_s)

    async def map(
        self,
        task: str,
        texts: Sequence[Text] | None = None,
        *,
        ids: Sequence[npt.ArrayLike] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
    ) -> list[Row | PenstockError]:
        """One result a sequence, in order: its row, or the error that is its own and nobody else's.

        Sequences at fault are taken out of their record and the others sent again; refusals that are retriable are
        tried again until the deadline.
        """
        sequences: Sequences
        if (texts is None) == (ids is None):
            raise InvalidRequest("Give exactly one of `texts` and `ids`.")
        sequences = texts if texts is not None else (ids or [])
        deadline = time.time() + (timeout_s if timeout_s is not None else self._settings.timeout_s)
        results: list[Row | PenstockError] = [_PENDING] * len(sequences)
        chunks = _split(sequences, self._settings.sequences_per_record)
        if len(chunks) == 1:
            await self._run_chunk(task, sequences, chunks[0], options or Options(), deadline, results)
        else:
            async with asyncio.TaskGroup() as group:
                for chunk in chunks:
                    group.create_task(self._run_chunk(task, sequences, chunk, options or Options(), deadline, results))
        return results

    async def request(self, request: Request, *, timeout_s: float | None = None) -> Reply:
        """Send one record and await its answer: the call beneath all others.

        Raises:
            PenstockError: what the worker answered, `Expired` after the deadline, or `ShuttingDown`.
        """
        deadline = time.time() + (timeout_s if timeout_s is not None else self._settings.timeout_s)
        return await self._exchange(request, deadline)

    async def _all(
        self,
        task: str,
        texts: str | Sequence[Text] | None,
        ids: Sequence[npt.ArrayLike] | None,
        options: Options,
        timeout_s: float | None,
    ) -> list[Any]:
        if isinstance(texts, str):
            texts = [texts]
        if not (texts or ids):
            raise EmptyInput("There is nothing to send: give at least one text, or one sequence of token ids.")
        rows = await self.map(task, texts, ids=ids, options=options, timeout_s=timeout_s)
        for row in rows:
            if isinstance(row, PenstockError):
                raise row
        return rows

    async def _run_chunk(
        self,
        task: str,
        sequences: Sequences,
        chunk: list[int],
        options: Options,
        deadline: float,
        results: list[Row | PenstockError],
    ) -> None:
        """Fill `results` at the indices of `chunk`, sending until each has its row or its own error."""
        chunk = [index for index in chunk if not _refuse_empty(sequences[index], index, results)]
        while chunk:
            try:
                reply = await self._exchange(await self._make_request(task, sequences, chunk, options), deadline)
            except PenstockError as error:
                if error.retriable and self._open and time.time() + _RETRY_S < deadline:
                    await asyncio.sleep(_RETRY_S)
                    continue
                culprits = {position: row for position, row in error.rows.items() if position in range(len(chunk))}
                culprits = culprits or dict.fromkeys(range(len(chunk)), error)
                for position, culprit in culprits.items():
                    results[chunk[position]] = culprit
                chunk = [index for position, index in enumerate(chunk) if position not in culprits]
            else:
                rows: Sequence[Row] = reply.vectors if reply.vectors is not None else (reply.classes or ())  # type: ignore[assignment]  # rows of an array
                for index, row in zip(chunk, rows, strict=True):
                    results[index] = row
                return

    async def _make_request(self, task: str, sequences: Sequences, chunk: list[int], options: Options) -> Request:
        model = self._settings.model
        chosen: list[Any] = [sequences[index] for index in chunk]
        if not isinstance(chosen[0], str | tuple):
            return Request(model, task, tokens=join_tokens(chosen), options=options)
        if self._tokenizer is None or any(isinstance(text, tuple) for text in chosen):
            # Pairs need token types, which `ids` does not carry: the worker tokenizes them.
            return Request(model, task, text=tuple(chosen), options=options)
        encoded = await self._tokenizer.encode_async(chosen, truncate=False)
        return Request(model, task, tokens=join_tokens([sequence.ids for sequence in encoded]), options=options)

    async def _exchange(self, request: Request, deadline: float) -> Reply:
        value = encode_request(request)
        await self._take_place(deadline)
        try:
            reply = await self._send(value, deadline)
        finally:
            self._in_flight.release()
        if isinstance(reply, ErrorReply):
            raise reply.exception()
        return reply

    async def _take_place(self, deadline: float) -> None:
        """A place among the requests in flight, waited for no longer than the deadline allows."""
        if not self._in_flight.locked():
            await self._in_flight.acquire()  # at once, and without the price of a timeout
            return
        try:
            async with asyncio.timeout(deadline - time.time()):
                await self._in_flight.acquire()
        except TimeoutError as error:
            raise Expired("The deadline passed while earlier requests were on their way.") from error

    async def _send(self, value: bytes, deadline: float) -> Reply | ErrorReply:
        if not self._open:
            raise ShuttingDown("The client is closed.")
        correlation_id = next(self._ids)
        answer = self._inbox.expect(correlation_id, deadline)
        headers = request_headers(
            correlation_id, self._settings.reply_topic, self._inbox.partition, int(deadline * 1000)
        )

        def sent(error: Exception | None) -> None:
            if error is not None:
                self._inbox.fail(correlation_id, InvalidRequest(f"Kafka refused the request record: {error}"))

        key = content_key(value)
        partition = partition_for(key, self._num_partitions)
        self._outbox.put(self._topic, partition, OutRecord(key, value, headers, sent))
        try:
            return await answer
        finally:
            self._inbox.forget(correlation_id)

    async def _sweep(self) -> None:
        """Fail what is past its deadline."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._inbox.expire(time.time(), lambda: Expired("No answer came before the deadline."))


_PENDING = PenstockError("No result was recorded for this sequence. This is a bug.")


def _correlation_ids() -> Iterator[bytes]:
    prefix = os.urandom(8)
    return (prefix + count.to_bytes(8, "big") for count in itertools.count())


def _split(sequences: Sequences, sequences_per_record: int) -> list[list[int]]:
    """Indices of the sequences, cut into records by count and by size of text."""
    chunks: list[list[int]] = []
    chars = 0
    for index, sequence in enumerate(sequences):
        size = len(sequence) if isinstance(sequence, str) else 0
        if not chunks or len(chunks[-1]) == sequences_per_record or chars + size > _RECORD_TEXT_CHARS:
            chunks.append([])
            chars = 0
        chunks[-1].append(index)
        chars += size
    return chunks


def _refuse_empty(sequence: Any, index: int, results: list[Row | PenstockError]) -> bool:
    """Refuse here what every worker would refuse, so that one blank text costs its record no second trip."""
    blank = not sequence.strip() if isinstance(sequence, str) else len(sequence) == 0
    if blank:
        results[index] = EmptyInput(f"Sequence {index} is empty.")
    return blank
