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

    revision: OneRevision  # of the model. Every answer must have it

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
    options: Options | None = None,
    resumed: BulkResult | None = None,
    max_errors: int | None = None,
    on_progress: Callable[[BulkResult], Any] = lambda _: None,
) -> BulkResult:
    """Send every row of `reader` through `client`, write every result, in order.

    A failed row is written with its error. While Kafka or the workers are down, rows wait until the client's
    `timeout_s` after they were sent, so it should be hours rather than seconds.

    Args:
        client: a started client, which other work may share.
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
    failures = _Failures(written.result, max_errors)
    answered = answer_stream(client, task, _in_thread(reader), options=options, revision=writer.revision)
    try:
        async with aclosing(answered):
            async for block, results in answered:
                failures.check(block, results)
                await written.begin(block, results, failures.count)
    finally:
        await written.wait()
    return written.result


class _Failures:
    """The failed rows of a job, and how many it allows."""

    def __init__(self, resumed: BulkResult, most: int | None) -> None:
        self.count = resumed.failed  # of all runs, in answered blocks
        self._most = most
        self._num_answered = resumed.rows
        self._first = ""  # of this run
        self._of_run = " of this run" if resumed.resumed else ""

    def check(self, block: Block, results: Sequence[Result]) -> None:
        """Count a block's. Raises TooManyErrors, and an error of the fleet."""
        errors = {index: one for index, one in enumerate(results) if isinstance(one, PenstockError)}
        if fault := next((one for one in errors.values() if isinstance(one, FLEET_ERRORS)), None):
            raise fault
        self.count += len(errors)
        if errors and not self._first:
            self._first = _shown(block, self._num_answered, *next(iter(errors.items())))
        if errors and self._most is not None and self.count > self._most:
            several = f"{self.count:,} rows failed. The first{self._of_run} is"
            raise TooManyErrors(f"{'1 row failed:' if self.count == 1 else several} {self._first}")
        self._num_answered += len(results)


class _WrittenBlocks:
    """Writes one block at a time; the rows of the next are read and sent meanwhile."""

    def __init__(self, writer: Writer, resumed: BulkResult, on_progress: Callable[[BulkResult], Any]) -> None:
        self.result = resumed  # of what is written
        self._writer = writer
        self._on_progress = on_progress
        self._started = time.monotonic()
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, block: Block, results: Sequence[Result], failed: int) -> None:
        """Begin to write a block, once the block before is written. `failed`: rows of all blocks up to this one."""
        await self.wait()
        self._writing = asyncio.create_task(self._write(block, results, failed))

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
