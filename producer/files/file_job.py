"""Bulk jobs: a table in, a table out, through one client. Order is kept, memory is bounded, and rows fail singly."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.producer.answer_stream import Mapper, Result, answer_stream
from penstock.producer.errors import PenstockError, UnknownModel, UnsupportedTask
from penstock.producer.files.row_blocks import Block
from penstock.producer.one_revision import OneRevision
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


# Errors of the fleet, or of the options, and not of a row. Every other row would have the same one, and each record
# would be a dead letter.
FLEET_ERRORS = (UnknownModel, UnsupportedTask)


async def run_bulk(
    client: Mapper,
    task: str,
    reader: Iterable[Block],
    writer: Writer,
    *,
    revision: OneRevision | None = None,
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
        revision: of the model. Every answer must have it. None: that of the first answer.
        reader: read from a thread, ahead of the writer as far as `answer_stream` reads.
        resumed: the rows of earlier runs, which `reader` leaves out.
        max_errors: failed rows, those of earlier runs included, that do not end the job; None: any number.
        on_progress: called on the event loop after each written block.

    Raises:
        TooManyErrors: more than `max_errors` rows failed. The block of the last one is not written.
        FLEET_ERRORS: the workers can answer no row. The block is not written.
        MixedRevisions: an answer is of another revision of the model. The block is not written.
    """
    written = _WrittenBlocks(writer, resumed or BulkResult(0, 0, 0.0), on_progress)
    blocks = _in_thread(reader)
    one = revision or OneRevision()
    answered = answer_stream(client, task, blocks, options=options, timeout_s=timeout_s, revision=one)
    num_answered = written.result.rows
    first = ""  # failed row of this run
    try:
        async with aclosing(answered):
            async for block, results in answered:
                errors = {index: one for index, one in enumerate(results) if isinstance(one, PenstockError)}
                if fault := next((one for one in errors.values() if isinstance(one, FLEET_ERRORS)), None):
                    raise fault
                written.failed += len(errors)
                if errors and not first:
                    first = _shown(block, num_answered, *next(iter(errors.items())))
                if errors and max_errors is not None and written.failed > max_errors:
                    of_run = " of this run" if written.result.resumed else ""
                    several = f"{written.failed:,} rows failed. The first{of_run} is"
                    raise TooManyErrors(f"{'1 row failed:' if written.failed == 1 else several} {first}")
                num_answered += len(results)
                await written.begin(block, results)
    finally:
        await written.wait()
    return written.result


class _WrittenBlocks:
    """Writes one block at a time; the rows of the next are read and sent meanwhile."""

    def __init__(self, writer: Writer, resumed: BulkResult, on_progress: Callable[[BulkResult], Any]) -> None:
        self.result = resumed  # of what is written
        self.failed = resumed.failed  # rows of answered blocks, written or not
        self._writer = writer
        self._on_progress = on_progress
        self._started = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, block: Block, results: Sequence[Result]) -> None:
        """Begin to write a block, once the block before is written."""
        await self.wait()
        self._writing = asyncio.create_task(self._write(block, results, self.failed))

    async def wait(self) -> None:
        """Wait until the last block is written. Raises the error of its write."""
        if self._writing is not None:
            await self._writing

    async def _write(self, block: Block, results: Sequence[Result], failed: int) -> None:
        await asyncio.to_thread(self._writer.write, block, results)
        done = self.result
        seconds = time.monotonic() - self._started
        self.result = BulkResult(done.rows + len(results), failed, seconds, done.resumed)
        self._on_progress(self.result)


def _shown(block: Block, before: int, index: int, error: PenstockError) -> str:
    """`row 6 (in.csv, line 7): empty: The text is empty.` `before`: the rows of earlier blocks."""
    place = f" ({block.place(index)})" if block.place(index) else ""
    return f"row {before + index + 1:,}{place}: {error.code}: {error.message}"


async def _in_thread(reader: Iterable[Block]) -> AsyncIterator[Block]:
    blocks = iter(reader)
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block
