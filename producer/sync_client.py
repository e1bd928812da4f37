"""The client for code that has no event loop of its own: scripts, notebooks and threads.

with SyncClient(model="all-MiniLM-L6-v2") as client:
    vectors = client.embed(["a text", "another"])
"""

import asyncio
import functools
import queue
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import numpy.typing as npt

from penstock.producer.answer_stream import Result, answer_stream, next_or_none
from penstock.producer.client import Client
from penstock.producer.errors import ShuttingDown, WrongArgument
from penstock.producer.keywords import ClientKeywords, GenerationKeywords
from penstock.producer.loop_thread import LoopThread, result_of
from penstock.producer.row_source import RowBatch, column_names, read_batches
from penstock.producer.wire.messages import Generation, Options, Reply

P = ParamSpec("P")
R = TypeVar("R")
_Wanted = asyncio.Future[RowBatch | None]
_Answered = tuple[tuple[RowBatch, list[Result]], "asyncio.Future[None]"]


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["SyncClient", P], R]:
    """A method of `Client` for a caller that waits."""

    @functools.wraps(method)
    def call(self: "SyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(lambda: method(self._client, *args, **kwargs))

    return call


class SyncClient:
    """`Client` for callers that wait, in any number of threads. Its event loop has a thread of its own.

    The first call connects, as `start` and `with` do. Methods have the arguments, results and errors of `Client`'s.
    They work where an event loop runs, as in a notebook, and block it. `close` ends the thread, and so does the
    interpreter at its exit.
    """

    def __init__(
        self,
        *,
        tokenizer: str | Path | None = None,
        bulk: bool = False,
        on_reply: Callable[[Reply, int], object] = lambda reply, num_rows: None,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        """As `Client`. `on_reply` is called on the thread of the event loop, and must not call this client."""
        self._client = Client(tokenizer=tokenizer, bulk=bulk, on_reply=on_reply, **settings)
        self._starting = asyncio.Lock()
        self._is_started = False
        self._thread = LoopThread()
        self._finish = weakref.finalize(self, _finish, self._client, self._thread)

    embed = _blocking(Client.embed)
    embed_sparse = _blocking(Client.embed_sparse)
    embed_tokens = _blocking(Client.embed_tokens)
    embed_all = _blocking(Client.embed_all)
    classify = _blocking(Client.classify)
    rerank = _blocking(Client.rerank)
    token_classify = _blocking(Client.token_classify)
    generate = _blocking(Client.generate)
    sequence = _blocking(Client.sequence)
    map = _blocking(Client.map)
    request = _blocking(Client.request)

    def start(self) -> None:
        """Connect, unless it is connected. Raises as `Client.start`."""
        self._thread.run(self._start())

    def close(self) -> None:
        """Fail pending calls with `ShuttingDown` and disconnect, for good. Safe to call twice."""
        self._finish()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def stream(
        self,
        text: str | None = None,
        *,
        ids: npt.ArrayLike | None = None,
        truncate: bool = False,
        timeout_s: float | None = None,
        **generation: Unpack[GenerationKeywords],
    ) -> Generator[Generation, None, None]:
        """`Client.stream` as an iterator: `for so_far in client.stream(…)`."""
        partials = self._client.stream(text, ids=ids, truncate=truncate, timeout_s=timeout_s, **generation)
        try:
            while (so_far := self._call(lambda: next_or_none(partials))) is not None:
                yield so_far
        finally:
            with suppress(ShuttingDown):
                self._thread.run(partials.aclose())

    def map_rows(
        self,
        task: str,
        rows: Any,
        *,
        column: str | tuple[str, str] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
    ) -> Generator[tuple[Any, Result], None, None]:
        """`Client.map_rows` as an iterator: `for row, result in client.map_rows(…)`.

        `rows` is read on the caller's thread, while the generator runs.
        """
        if hasattr(rows, "__aiter__"):
            raise WrongArgument("`rows` is an async iterable, which needs an event loop: use Client.")
        batches = iter(read_batches(rows, column_names(column)))
        for batch, results in self._answered(task, batches, options, timeout_s):
            yield from zip(batch.rows, results, strict=True)

    def _answered(
        self, task: str, batches: Iterator[RowBatch], options: Options | None, timeout_s: float | None
    ) -> Iterator[tuple[RowBatch, list[Result]]]:
        """Each batch with its results. The stream on the loop asks for batches and hands on results, one at a time."""
        events: queue.SimpleQueue[_Wanted | _Answered | None] = queue.SimpleQueue()
        answering = self._thread.begin(self._started(lambda: self._answer(task, events, options, timeout_s)))
        answering.add_done_callback(lambda _: events.put(None))
        try:
            while (event := events.get()) is not None:
                if isinstance(event, tuple):
                    answer, taken = event
                    yield answer
                    self._thread.post(_settle, taken, None)
                else:
                    self._thread.post(_settle, event, next(batches, None))
            result_of(answering)
        finally:
            answering.cancel()

    async def _answer(
        self,
        task: str,
        events: "queue.SimpleQueue[_Wanted | _Answered | None]",
        options: Options | None,
        timeout_s: float | None,
    ) -> None:
        loop = asyncio.get_running_loop()

        async def wanted() -> AsyncIterator[RowBatch]:
            while True:
                asked: _Wanted = loop.create_future()
                events.put(asked)
                if (batch := await asked) is None:
                    return
                yield batch

        revision = self._client._one_revision()
        answers = answer_stream(self._client, task, wanted(), options=options, timeout_s=timeout_s, revision=revision)
        async with aclosing(answers):
            async for answer in answers:
                taken: asyncio.Future[None] = loop.create_future()
                events.put((answer, taken))
                await taken

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._thread.run(self._started(work))

    async def _started(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        await self._start()
        return await work()

    async def _start(self) -> None:
        async with self._starting:
            if not self._is_started:
                await self._client.start()
                self._is_started = True


def _settle(waited: "asyncio.Future[R]", result: R) -> None:
    if not waited.done():
        waited.set_result(result)


def _finish(client: Client, thread: LoopThread) -> None:
    thread.stop(client.close())
