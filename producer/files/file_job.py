"""Bulk jobs: a table in, a table out, through one client. Order is kept, memory is bounded, and rows fail singly."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.producer.client import Row
from penstock.producer.errors import EmptyInput, InvalidRequest, PenstockError
from penstock.producer.files.table_reader import Block
from penstock.producer.wire.messages import Options, Text, utf8_fault

# Rows in flight: enough that the worker does not wait for the file. A long text counts as one row for each 16 KiB, so
# that the window holds at most about 64 MiB.
WINDOW_ROWS = 4096
_ROW_CHARS = 16 * 1024

Result = Row | PenstockError


class Writer(Protocol):
    """Destination of finished rows."""

    def write(self, block: Block, results: Sequence[Result], /) -> None:
        """Write rows. Called in the order of the file, from a thread, never concurrently."""
        ...


class Mapper(Protocol):
    """The part of `Client` that a bulk job uses."""

    async def map(
        self, task: str, texts: Sequence[Text], *, options: Options | None = None, timeout_s: float | None = None
    ) -> list[Result]:
        """One result a text, in order."""
        ...


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Progress of a job."""

    rows: int  # written, failed ones included
    failed: int  # rows with an error in place of an answer
    seconds: float


async def run_bulk(
    client: Mapper,
    task: str,
    reader: Iterable[Block],
    writer: Writer,
    *,
    options: Options | None = None,
    timeout_s: float | None = None,
    on_progress: Callable[[BulkResult], Any] = lambda _: None,
) -> BulkResult:
    """Send every row of `reader` through `client`, write every result, in order.

    A failed row is written with its error. While Kafka or the workers are down, rows wait until `timeout_s` after they
    were sent (None: the client's), so it should be hours rather than seconds.

    Args:
        client: a started client, which other work may share.
        reader: read from a thread, at most `WINDOW_ROWS` rows and one block ahead of the writer.
        on_progress: called on the event loop after each written block.
    """
    started = time.monotonic()
    done = BulkResult(0, 0, 0.0)
    blocks = iter(reader)
    waiting: deque[tuple[Block, asyncio.Task[list[Result]]]] = deque()
    in_flight = 0
    try:
        while True:
            while in_flight < WINDOW_ROWS and (block := await asyncio.to_thread(next, blocks, None)) is not None:
                waiting.append((block, asyncio.create_task(_answer(client, task, block.texts, options, timeout_s))))
                in_flight += _weight(block)
            if not waiting:
                return done
            block, answer = waiting[0]
            results = await answer
            waiting.popleft()
            in_flight -= _weight(block)
            await asyncio.to_thread(writer.write, block, results)
            failed = sum(isinstance(result, PenstockError) for result in results)
            done = BulkResult(done.rows + len(results), done.failed + failed, time.monotonic() - started)
            on_progress(done)
    finally:
        for _, answer in waiting:
            answer.cancel()
        await asyncio.gather(*(answer for _, answer in waiting), return_exceptions=True)


async def _answer(
    client: Mapper,
    task: str,
    texts: Sequence[str | PenstockError],
    options: Options | None,
    timeout_s: float | None,
) -> list[Result]:
    """A result for each row: the client's, or the error of a row that cannot be sent."""
    checked = [_check(text) for text in texts]
    good = [text for text in checked if isinstance(text, str)]
    answers = iter(await client.map(task, good, options=options, timeout_s=timeout_s) if good else ())
    return [next(answers) if isinstance(text, str) else text for text in checked]


def _weight(block: Block) -> int:
    return sum([1 + len(text) // _ROW_CHARS if isinstance(text, str) else 1 for text in block.texts])


def _check(text: str | PenstockError) -> str | PenstockError:
    """The text, or its error. The client would number texts by their place in a record, which means nothing here."""
    if isinstance(text, str) and not text.strip():
        return EmptyInput("The text is empty.")
    if isinstance(text, str) and (fault := utf8_fault(text)):
        return InvalidRequest(f"The text cannot be UTF-8: {fault}.")
    return text
