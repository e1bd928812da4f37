"""Memory of a bulk job: bounded by blocks, parts and row groups, whatever the number and the size of its rows."""

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.producer import answer_stream
from penstock.producer.answer_stream import Result
from penstock.producer.files import JobOutput, join_parts, open_reader, part_writer
from penstock.producer.files.file_job import run_bulk
from penstock.producer.files.row_blocks import Block
from penstock.producer.wire.messages import Classification, Text

_LABEL = Classification(("card",), (0.5,))
_VECTOR = np.zeros(64, dtype=np.float32)


class Instant:
    """Answers every text at once."""

    async def map(self, task: str, texts: Sequence[Text], **_: Any) -> list[Result]:
        await asyncio.sleep(0)
        return [_VECTOR if task == "embed" else _LABEL for _ in texts]


def write_input(path: Path, num_rows: int) -> None:
    if path.suffix == ".csv":
        with path.open("w") as file:
            file.write("text\n")
            file.writelines(f"Where is my card number {row}?\n" for row in range(num_rows))
        return
    with pq.ParquetWriter(path, pa.schema([("text", pa.string())])) as writer:
        for start in range(0, num_rows, 20_000):
            texts = [f"Where is my card number {row}?" for row in range(start, min(start + 20_000, num_rows))]
            writer.write_table(pa.table({"text": texts}))


async def run(source: Path, target: Path, task: str) -> None:
    with open_reader(source, "text") as reader, JobOutput(target, task).open(reader) as writer:
        await run_bulk(Instant(), task, reader, writer)


async def peak_bytes(source: Path, task: str, num_rows: int) -> int:
    """Largest memory of a job, of Python's objects and of Arrow's buffers, as in a process of its own."""
    target = source.with_name(f"out-{source.name}")
    write_input(source, num_rows)
    gc.collect()
    gc.freeze()  # what other tests left: the more objects there are, the rarer are collections
    gc.collect()
    tracemalloc.start()
    arrow_before, arrow_peak = pa.total_allocated_bytes(), 0

    def watched(blocks: Iterator[Block]) -> Iterator[Block]:
        nonlocal arrow_peak
        for block in blocks:
            arrow_peak = max(arrow_peak, pa.total_allocated_bytes() - arrow_before)
            yield block

    try:
        with open_reader(source, "text") as reader, JobOutput(target, task).open(reader) as writer:
            await run_bulk(Instant(), task, watched(iter(reader)), writer)
        return tracemalloc.get_traced_memory()[1] + arrow_peak
    finally:
        tracemalloc.stop()
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize(("extension", "task"), [("csv", "classify"), ("parquet", "embed")])
async def test_sixteen_times_the_rows_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, task: str
) -> None:
    """All of the many rows with their results would be more than 20 MB. Threads overlap by chance, for 4 to 7 MB."""
    monkeypatch.setattr(answer_stream, "MOST_WINDOW_ROWS", 1024)
    monkeypatch.setattr(part_writer, "PART_ROWS", 2048)
    monkeypatch.setattr(join_parts, "ROW_GROUP_ROWS", 4096)
    await peak_bytes(tmp_path / f"first.{extension}", task, 100)  # loads the modules that a job needs
    assert await peak_bytes(tmp_path / f"few.{extension}", task, 5_000) < 10_000_000
    assert await peak_bytes(tmp_path / f"many.{extension}", task, 80_000) < 10_000_000


@pytest.mark.slow
async def test_a_cell_of_50_mb_is_kept_and_a_text_of_50_mb_is_an_error_of_its_row(tmp_path: Path) -> None:
    large = "x" * 50_000_000
    columns = {"text": ["small", large, "last"], "page": [large, "small", "last"]}
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    await run(tmp_path / "in.parquet", tmp_path / "out.parquet", "classify")
    written = pq.read_table(tmp_path / "out.parquet")
    assert {name: written.column(name).to_pylist() for name in columns} == columns
    assert written.column("label").to_pylist() == ["card", None, "card"]
    first, second, third = written.column("error").to_pylist()
    assert first is None
    assert third is None
    assert second


@pytest.mark.parametrize("row_group_rows", [1000, 100_000])
def test_a_parquet_file_is_read_piece_by_piece(tmp_path: Path, row_group_rows: int) -> None:
    """Neither what was read nor the rest of a row group stays in memory. The texts hardly compress."""
    texts = [os.urandom(1000).hex() for _ in range(16_000)]
    pq.write_table(
        pa.table({"text": texts}), tmp_path / "in.parquet", row_group_size=row_group_rows, use_dictionary=False
    )
    assert (tmp_path / "in.parquet").stat().st_size > 15_000_000
    before, most = pa.total_allocated_bytes(), 0
    with open_reader(tmp_path / "in.parquet", "text") as reader:
        for _ in reader:
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 8_000_000
