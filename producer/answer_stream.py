"""Answers to a stream of batches of texts: order is kept, memory is bounded, and texts fail singly."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from penstock.producer.errors import InvalidRequest, PenstockError, UnsupportedTask
from penstock.producer.one_revision import OneRevision
from penstock.producer.row_inputs import RowInputs, num_chars, text_fault
from penstock.producer.wire.messages import NO_OPTIONS, TOKEN_VECTOR_TASKS, Options, Reply, Row, Text

# Texts in flight, so that the workers do not wait for the source: the answers of the last half second, within these
# bounds. A long text counts as one for each 4 KiB, and a long row as one for each 16 KiB, so that the window holds
# 64 MiB of texts and 256 MiB of rows at most. With a vector for each token a text counts as one for each 64 characters,
# of which a model with vectors of 128 numbers makes some 8 KiB.
WINDOW_ROWS, MOST_WINDOW_ROWS = 4096, 16_384
_WINDOW_S = 0.5
_ROW_CHARS, _TOKEN_VECTOR_CHARS = 4 * 1024, 64
_ROW_BYTES = 16 * 1024

Result = Row | PenstockError


class Mapper(Protocol):
    """The part of `Client` that streams use."""

    async def map(
        self,
        task: str,
        texts: Any,  # a list of texts, or None where there are `ids`
        *,
        ids: Sequence[Sequence[int]] | None = None,
        options: Options | None = None,
        timeout_s: float | None = None,
        revision: OneRevision | None = None,
        on_reply: Callable[[Reply, int], object] | None = None,
    ) -> list[Result]:
        """One result a sequence, in order."""
        ...


class TextBatch(Protocol):
    """Texts that are sent in one call, or `RowInputs`, each in a call of its own.

    An error in place of a text is its result.
    """

    @property
    def texts(self) -> Sequence[Text | RowInputs | PenstockError]: ...

    @property
    def num_bytes(self) -> int:
        """Approximate size of the rows, in bytes."""
        ...


T = TypeVar("T")
B = TypeVar("B", bound=TextBatch)


async def answer_stream(
    client: Mapper,
    task: str,
    batches: AsyncIterator[B],
    *,
    options: Options | None = None,
    timeout_s: float | None = None,
    revision: OneRevision,
) -> AsyncGenerator[tuple[B, list[Result]], None]:
    """Each batch with one result a text, in order. Raises MixedRevisions once an answer is not of the one `revision`.

    At most `MOST_WINDOW_ROWS` texts, and one batch, are read ahead of the consumer. An answered batch does not wait for
    the source. Close the generator (`contextlib.aclosing`) to cancel what is in flight.
    """
    row_chars = _TOKEN_VECTOR_CHARS if task in TOKEN_VECTOR_TASKS else _ROW_CHARS
    in_flight = _InFlight[B](lambda texts: _answer(client, task, texts, options, timeout_s, revision), row_chars)
    reading: asyncio.Task[B | None] | None = None
    is_at_end = False
    try:
        while True:
            if reading is None and not is_at_end and in_flight.has_room:
                reading = asyncio.create_task(next_or_none(batches))
            pending = {task for task in (in_flight.first, reading) if task is not None}
            if not pending:
                return
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                is_at_end = not in_flight.send(reading.result())
                reading = None
            elif in_flight.first is not None and in_flight.first.done():
                yield in_flight.take()
    finally:
        unfinished = in_flight.tasks() if reading is None else [*in_flight.tasks(), reading]
        for one in unfinished:
            one.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


class _InFlight(Generic[B]):
    """Batches that were sent and not handed on yet, in order, and whether another may be read."""

    def __init__(
        self,
        answer: Callable[[Sequence[Text | RowInputs | PenstockError]], Coroutine[Any, Any, list[Result]]],
        row_chars: int,
    ) -> None:
        self._answer = answer
        self._row_chars = row_chars
        self._batches: deque[tuple[B, asyncio.Task[list[Result]]]] = deque()
        self._weight = 0
        self._window = _Window()

    @property
    def has_room(self) -> bool:
        return self._weight < self._window.rows

    @property
    def first(self) -> asyncio.Task[Any] | None:
        """The call of the first batch, which is handed on next; None without one."""
        return self._batches[0][1] if self._batches else None

    def tasks(self) -> list[asyncio.Task[Any]]:
        """The calls of all batches."""
        return [answer for _, answer in self._batches]

    def send(self, batch: B | None) -> bool:
        """Whether there is a batch, which is then sent."""
        if batch is None:
            return False
        self._batches.append((batch, asyncio.create_task(self._answer(batch.texts))))
        self._weight += _weight(batch, self._row_chars)
        return True

    def take(self) -> tuple[B, list[Result]]:
        """Remove the first batch, which is answered."""
        batch, answer = self._batches.popleft()
        weight = _weight(batch, self._row_chars)
        self._weight -= weight
        self._window.add(weight)
        return batch, answer.result()


class _Window:
    """Number of texts that may be in flight. It grows with the throughput."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._answered: deque[tuple[float, int]] = deque()  # of the last half second: when, and how many
        self._num_answered = 0

    @property
    def rows(self) -> int:
        return min(max(WINDOW_ROWS, self._num_answered), MOST_WINDOW_ROWS)

    def add(self, count: int) -> None:
        """Count answers."""
        now = self._now()
        self._answered.append((now, count))
        self._num_answered += count
        while self._answered[0][0] < now - _WINDOW_S:
            self._num_answered -= self._answered.popleft()[1]


async def next_or_none(items: AsyncIterator[T]) -> T | None:
    """The next item, as a coroutine, of which a task can be made; None at the end."""
    return await anext(items, None)


async def _answer(
    client: Mapper,
    task: str,
    rows: Sequence[Text | RowInputs | PenstockError],
    options: Options | None,
    timeout_s: float | None,
    revision: OneRevision,
) -> list[Result]:
    """A result for each row: the client's, or the error of a row that cannot be sent."""
    faults = [_fault(row) for row in rows]
    texts = [row for row, fault in zip(rows, faults, strict=True) if fault is None and isinstance(row, str | tuple)]
    several = [row for row, fault in zip(rows, faults, strict=True) if fault is None and isinstance(row, RowInputs)]
    found: list[Result] = []
    if texts:
        found = await client.map(task, texts, options=options, timeout_s=timeout_s, revision=revision)
    answers = map(_without_place, found)
    calls = [_answer_inputs(client, task, row, options, timeout_s, revision) for row in several]
    of_several = iter(await asyncio.gather(*calls))
    return [
        fault or (next(of_several) if isinstance(row, RowInputs) else next(answers))
        for row, fault in zip(rows, faults, strict=True)
    ]


def _fault(row: Text | RowInputs | PenstockError) -> PenstockError | None:
    """The result of a row that cannot be sent; None of others."""
    if isinstance(row, PenstockError):
        return row
    if not isinstance(row, RowInputs):
        return text_fault(row)
    faults = [(index, fault) for index, text in enumerate(row.texts or ()) if (fault := text_fault(text))]
    return _named(*faults[0], num_inputs=len(row.texts or ())) if faults else None


def _named(index: int, fault: PenstockError, num_inputs: int) -> PenstockError:
    """The fault of an input, which is named by its place, from 0, if its row has several."""
    return fault if num_inputs == 1 else type(fault)(f"Input {index}: {fault.message}")


async def _answer_inputs(
    client: Mapper,
    task: str,
    row: RowInputs,
    options: Options | None,
    timeout_s: float | None,
    revision: OneRevision,
) -> Result:
    """The vectors of a row's inputs, [n, dim], or the first error. Its tokens are counted in `num_tokens`."""
    row.num_tokens = 0

    def count(reply: Reply, num_rows: int) -> None:
        row.num_tokens += reply.request_tokens

    own = options if row.dimensions is None else (options or NO_OPTIONS)._replace(dimensions=row.dimensions)
    try:
        answers = await client.map(
            task, row.texts, ids=row.ids, options=own, timeout_s=timeout_s, revision=revision, on_reply=count
        )
    except InvalidRequest as error:  # of options that the row's kind of inputs does not take
        return error
    for index, answer in enumerate(map(_without_place, answers)):
        if isinstance(answer, UnsupportedTask) and row.dimensions is not None:  # which other rows do not ask for
            return InvalidRequest(answer.message)
        if isinstance(answer, PenstockError):
            return _named(index, answer, len(answers))
    vectors: Any = answers  # of the task embed, the one that has such rows
    return np.stack(vectors)


def _without_place(result: Result) -> Result:
    """The result; of an error that names its text by the place in a call, which means nothing here, the text's own."""
    return next(iter(result.rows.values())) if isinstance(result, PenstockError) and result.rows else result


def _weight(batch: TextBatch, row_chars: int) -> int:
    texts = [1 if isinstance(text, PenstockError) else 1 + num_chars(text) // row_chars for text in batch.texts]
    return sum(texts) + batch.num_bytes // _ROW_BYTES
