"""Bulk jobs: a table in, a table out, through one client. Order is kept, memory is bounded, and rows fail singly."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.producer.answer_stream import Mapper, Result, answer_stream
from penstock.producer.errors import PenstockError
from penstock.producer.files.row_blocks import Block
from penstock.producer.wire.messages import Options


class Writer(Protocol):
    """Destination of finished rows."""

    def write(self, block: Block, results: Sequence[Result], /) -> None:
        """Write rows. Called in the order of the file, from a thread, never concurrently."""
        ...


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Progress of a job."""

    rows: int  # written, failed ones included
    failed: int  # rows with an error in place of an answer
    seconds: float  # of this run
    resumed: int = 0  # rows that earlier runs have written, among `rows`

    @property
    def rows_per_s(self) -> float:
        """Throughput of this run."""
        return (self.rows - self.resumed) / self.seconds if self.seconds > 0 else 0.0


class TooManyErrors(Exception):
    """More rows failed than the job allows."""


async def run_bulk(
    client: Mapper,
    task: str,
    reader: Iterable[Block],
    writer: Writer,
    *,
    options: Options | None = None,
    timeout_s: float | None = None,
    resumed: BulkResult | None = None,
    max_errors: int | None = None,
    on_progress: Callable[[BulkResult], Any] = lambda _: None,
) -> BulkResult:
    """Send every row of `reader` through `client`, write every result, in order.

    A failed row is written with its error. While Kafka or the workers are down, rows wait until `timeout_s` after they
    were sent (None: the client's), so it should be hours rather than seconds.

    Args:
        client: a started client, which other work may share.
        reader: read from a thread, ahead of the writer as far as `answer_stream` reads.
        resumed: the rows of earlier runs, which `reader` leaves out.
        max_errors: failed rows, those of earlier runs included, that do not end the job; None: any number.
        on_progress: called on the event loop after each written block.

    Raises:
        TooManyErrors: more than `max_errors` rows failed. The block of the last one is not written.
    """
    started = time.monotonic()
    done = resumed or BulkResult(0, 0, 0.0)
    answered = answer_stream(client, task, _in_thread(reader), options=options, timeout_s=timeout_s)
    failed, answered_rows = done.failed, done.rows
    first = ""  # failed row of this run
    writing: asyncio.Task[None] | None = None  # of the block before: the next rows are read and sent meanwhile

    async def write(block: Block, results: Sequence[Result], failed: int) -> None:
        nonlocal done
        await asyncio.to_thread(writer.write, block, results)
        done = BulkResult(done.rows + len(results), failed, time.monotonic() - started, done.resumed)
        on_progress(done)

    try:
        async with aclosing(answered):
            async for block, results in answered:
                errors = {index: one for index, one in enumerate(results) if isinstance(one, PenstockError)}
                failed += len(errors)
                if errors and not first:
                    first = _shown(block, answered_rows, *next(iter(errors.items())))
                if errors and max_errors is not None and failed > max_errors:
                    of_run = " of this run" if done.resumed else ""
                    several = f"{failed:,} rows failed. The first{of_run} is"
                    raise TooManyErrors(f"{'1 row failed:' if failed == 1 else several} {first}")
                answered_rows += len(results)
                if writing is not None:
                    await writing
                writing = asyncio.create_task(write(block, results, failed))
    finally:
        if writing is not None:
            await writing
    return done


def _shown(block: Block, before: int, index: int, error: PenstockError) -> str:
    """`row 6 (in.csv, line 7): empty: The text is empty.` `before`: the rows of earlier blocks."""
    place = f" ({block.place(index)})" if block.place(index) else ""
    return f"row {before + index + 1:,}{place}: {error.code}: {error.message}"


async def _in_thread(reader: Iterable[Block]) -> AsyncIterator[Block]:
    blocks = iter(reader)
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block
