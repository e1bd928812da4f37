"""Bulk jobs: order, isolation, bounded memory, and the end of everything that was started."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from penstock.producer import answer_stream
from penstock.producer.answer_stream import Result
from penstock.producer.errors import BackendError, InvalidRequest, PenstockError, UnknownModel, UnsupportedTask
from penstock.producer.files.file_job import BulkResult, TooManyErrors, run_bulk
from penstock.producer.files.row_blocks import Block
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import Options, Text
from tests.producer.helpers import connected, refusing_x


class Table:
    """Reader and writer in memory."""

    def __init__(self, texts: Sequence[Text | PenstockError], rows_per_block: int = 3) -> None:
        self.texts = texts
        self.rows_per_block = rows_per_block
        self.num_read = 0
        self.written: list[tuple[Any, Result]] = []
        self.most_ahead = 0
        self.revision = OneRevision()

    def __iter__(self) -> Iterator[Block]:
        for start in range(0, len(self.texts), self.rows_per_block):
            block = Block(self.texts[start : start + self.rows_per_block], ())
            self.num_read += len(block.texts)
            self.most_ahead = max(self.most_ahead, self.num_read - len(self.written))
            yield block

    def write(self, block: Block, results: Sequence[Result]) -> None:
        self.written += zip(block.texts, results, strict=True)


class Lengths:
    """Answers each text with its length, after as many turns of the event loop as its order says."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.options: Options | None = None

    async def map(self, task: str, texts: Sequence[Text], **options: Any) -> list[Result]:
        self.options = options.get("options")
        self.in_flight += 1
        try:
            for _ in range(len(texts[0]) % 7):  # later blocks overtake earlier ones
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        return [BackendError("burst") if text == "burst" else np.array([len(text)]) for text in texts]


class Never(Lengths):
    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.all_there = asyncio.Event()

    async def map(self, task: str, texts: Sequence[Text], **options: Any) -> list[Result]:
        self.in_flight += 1
        if self.in_flight == self.expected:
            self.all_there.set()
        try:
            await asyncio.Event().wait()
            raise RuntimeError("Never came.")
        finally:
            self.in_flight -= 1


def lengths(table: Table) -> list[int | str]:
    return [result.code if isinstance(result, PenstockError) else int(result[0]) for _, result in table.written]  # type: ignore[index,arg-type]  # Lengths answers with arrays


async def test_a_text_that_no_request_holds_fails_alone() -> None:
    table = Table(["a", "x" * ((4 << 20) + 1), "b"])
    await run_bulk(Lengths(), "embed", table, table)
    assert lengths(table) == [1, "invalid_request", 1]


async def test_large_rows_are_not_read_ahead_in_number() -> None:
    class Large(Table):
        def __iter__(self) -> Iterator[Block]:
            for block in super().__iter__():
                yield Block(block.texts, block.source, num_bytes=64 << 20)

    table = Large(["a"] * 40, rows_per_block=1)
    await run_bulk(Lengths(), "embed", table, table)
    assert len(table.written) == 40
    assert table.most_ahead <= 8


async def test_every_row_in_order() -> None:
    texts = ["x" * (1 + index % 13) for index in range(100)]
    table = Table(texts)
    result = await run_bulk(Lengths(), "embed", table, table)
    assert [text for text, _ in table.written] == texts
    assert lengths(table) == [len(text) for text in texts]
    assert (result.rows, result.failed) == (100, 0)


async def test_a_row_fails_alone() -> None:
    table = Table(["a", "burst", " ", "\ud800", InvalidRequest("line 5 has no text"), "bb", "", "", "", "ccc"])
    result = await run_bulk(Lengths(), "embed", table, table)
    faults = ["backend", "empty", "invalid_request", "invalid_request"]
    assert lengths(table) == [1, *faults, 2, "empty", "empty", "empty", 3]
    assert (result.rows, result.failed) == (10, 7)
    assert table.written[4][1] is table.texts[4]


async def test_the_error_of_a_row_names_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a column of its row; the calls of a job are not the rows of its file."""
    table = Table(["a", "x", " ", "b", "x"])
    async with connected(monkeypatch, refusing_x) as (client, _):
        await run_bulk(client, "embed", table, table)
    faults = [(text, str(result)) for text, result in table.written if isinstance(result, PenstockError)]
    assert faults == [("x", "Given: 600"), (" ", "The text is empty."), ("x", "Given: 600")]


async def test_window_is_bounded_and_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "MOST_WINDOW_ROWS", 30)
    table = Table(["x" * (1 + index % 13) for index in range(1000)])
    ten_calls = asyncio.Event()  # of three rows each

    class WhenFull(Lengths):
        num_calls = 0

        async def map(self, task: str, texts: Sequence[Text], **options: Any) -> list[Result]:
            if self.num_calls < 10:
                self.num_calls += 1
                await ten_calls.wait() if self.num_calls < 10 else ten_calls.set()
            return await super().map(task, texts)

    await run_bulk(WhenFull(), "embed", table, table)
    # Beside the window: a block that is read ahead, and the one that is being written.
    assert 30 <= table.most_ahead <= 30 + 2 * table.rows_per_block


@pytest.mark.parametrize(("task", "length"), [("embed", 10 * 16 * 1024), ("embed_tokens", 640), ("embed_all", 640)])
async def test_long_texts_count_for_more(monkeypatch: pytest.MonkeyPatch, task: str, length: int) -> None:
    monkeypatch.setattr(answer_stream, "MOST_WINDOW_ROWS", 30)
    table = Table(["x" * length] * 30, rows_per_block=1)
    await run_bulk(Lengths(), task, table, table)
    assert table.most_ahead <= 4


async def test_progress_ends_with_the_result() -> None:
    seen: list[BulkResult] = []
    table = Table(["a", "burst"] * 10)
    result = await run_bulk(Lengths(), "embed", table, table, on_progress=seen.append)
    assert [done.rows for done in seen] == [3, 6, 9, 12, 15, 18, 20]
    assert seen[-1] == result
    assert result.failed == 10


async def test_options_reach_the_client() -> None:
    client, table = Lengths(), Table(["a"])
    await run_bulk(client, "classify", table, table, options=Options(top_k=3))
    assert client.options == Options(top_k=3)


async def test_nothing_to_do() -> None:
    table = Table([])
    result = await run_bulk(Lengths(), "embed", table, table)
    assert (result.rows, result.failed) == (0, 0)


async def test_cancelling_ends_every_call() -> None:
    client, table = Never(10), Table(["a"] * 30)
    job = asyncio.create_task(run_bulk(client, "embed", table, table))
    await client.all_there.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert client.in_flight == 0
    assert table.written == []


async def test_a_writer_that_fails_ends_the_job() -> None:
    class Full(Table):
        def write(self, block: Block, results: Sequence[Result]) -> None:
            raise OSError(28, "No space left on device", "out.csv")

    client, table = Lengths(), Full(["x" * 6] * 100)
    with pytest.raises(OSError, match="No space left"):
        await run_bulk(client, "embed", table, table)
    assert client.in_flight == 0


@pytest.mark.parametrize(("allowed", "written"), [(0, 0), (1, 3), (2, 6), (3, 9)])
async def test_more_errors_than_allowed_end_the_job(allowed: int, written: int) -> None:
    """Rows are in blocks of three, and the first of each fails."""
    table = Table(["burst", "a", "b"] * 10)
    several = rf"{allowed + 1} rows failed. The first is"
    with pytest.raises(TooManyErrors, match=f"{several if allowed else '1 row failed:'} row 1: backend: burst"):
        await run_bulk(Lengths(), "embed", table, table, max_errors=allowed)
    assert len(table.written) == written


@pytest.mark.parametrize("fault", [UnsupportedTask("'m' can embed."), UnknownModel("They serve 'other'.")])
async def test_a_fleet_that_can_answer_no_row_ends_the_job(fault: PenstockError) -> None:
    class WrongFleet(Lengths):
        async def map(self, task: str, texts: Sequence[Text], **options: Any) -> list[Result]:
            return [fault for _ in texts]

    table = Table(["a", "b"] * 30_000)
    with pytest.raises(type(fault), match=fault.message):
        await run_bulk(WrongFleet(), "classify", table, table)
    assert table.written == []
    assert table.num_read < 30_000


async def test_errors_of_earlier_runs_count() -> None:
    table = Table(["burst", "a"])
    with pytest.raises(TooManyErrors, match=r"6 rows failed. The first of this run is row 71: backend: burst"):
        await run_bulk(Lengths(), "embed", table, table, max_errors=5, resumed=BulkResult(70, 5, 0.0, 70))
    done = await run_bulk(Lengths(), "embed", table, table, max_errors=6, resumed=BulkResult(70, 5, 0.0, 70))
    assert (done.rows, done.failed, done.resumed) == (72, 6, 70)


async def test_an_answer_does_not_wait_for_the_next_block() -> None:
    """The source gives its second block after the first one is written."""
    first_written = asyncio.Event()

    class Hesitating(Table):
        def write(self, block: Block, results: Sequence[Result]) -> None:
            super().write(block, results)
            loop.call_soon_threadsafe(first_written.set)

        def __iter__(self) -> Iterator[Block]:
            yield Block(["a"], ())
            asyncio.run_coroutine_threadsafe(first_written.wait(), loop).result(timeout=300)
            yield Block(["bb"], ())

    loop = asyncio.get_running_loop()
    table = Hesitating([])
    await run_bulk(Lengths(), "embed", table, table)
    assert lengths(table) == [1, 2]
