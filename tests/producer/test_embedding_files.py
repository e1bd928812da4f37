"""Files of sparse vectors and vectors of tokens, in each format, and continued after an interruption."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.producer.answer_stream import Result
from penstock.producer.errors import PenstockError
from penstock.producer.files import JobOutput, open_reader, parquet_reader, part_writer, row_blocks
from penstock.producer.wire.vector_tables import SparseVector, TextVectors
from tests.producer.table_files import read_table, write_table

TEXTS = ["ab", None, "c", "", "abc"]  # one row without a text, and one whose sparse vector has no id


def all_of(text: str) -> TextVectors:
    ids = np.array([ord(one) for one in text], np.uint32)
    sparse = SparseVector(ids, ids.astype(np.float32) / 2)
    return TextVectors(np.array([len(text), 0.5], np.float32), np.ones((len(text) + 1, 3), np.float32), sparse)


def answer(task: str, text: Any) -> Result:
    if isinstance(text, PenstockError):
        return text
    row = all_of(str(text))
    rows: dict[str, Result] = {"embed_sparse": row.sparse, "embed_tokens": row.tokens, "embed_all": row}
    return rows[task]


def columns_of(task: str, text: str | None) -> dict[str, Any]:
    row = None if text is None else all_of(text)
    sparse = {"indices": row and row.sparse.ids.tolist(), "values": row and row.sparse.weights.tolist()}
    tokens = {"token_embeddings": row and row.tokens.tolist()}
    every = {"embedding": row and row.vector.tolist(), **tokens, **sparse}
    return {"embed_sparse": sparse, "embed_tokens": tokens, "embed_all": every}[task]


def run(source: Path, target: Path, task: str, most_blocks: int | None = None) -> None:
    with open_reader(source, "text") as reader, JobOutput(target, task).open(reader) as writer:
        for number, block in enumerate(reader):
            if number == most_blocks:
                raise KeyboardInterrupt
            writer.write(block, [answer(task, text) for text in block.texts])


@pytest.mark.parametrize("task", ["embed_sparse", "embed_tokens", "embed_all"])
@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_each_kind_has_its_columns_and_a_job_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, extension: str
) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": pa.array(TEXTS, pa.string())}), source)
    for module in (row_blocks, parquet_reader):
        monkeypatch.setattr(module, "BLOCK_ROWS", 2)
    monkeypatch.setattr(part_writer, "PART_ROWS", 2)
    whole, target = tmp_path / f"whole.{extension}", tmp_path / f"out.{extension}"
    run(source, whole, task)
    with pytest.raises(KeyboardInterrupt):
        run(source, target, task, most_blocks=2)
    run(source, target, task)
    assert target.read_bytes() == whole.read_bytes()
    for row, text in zip(read_table(whole), TEXTS, strict=True):
        found = {name: value for name, value in row.items() if name not in ("text", "error")}
        if extension == "csv":
            found = {name: json.loads(value) if value else None for name, value in found.items()}
        assert found == columns_of(task, text)
        assert bool(row["error"]) is (text is None)


def test_parquet_has_the_types_that_stores_of_vectors_read(tmp_path: Path) -> None:
    source = write_table(tmp_path / "in.csv", [{"text": "ab"}, {"text": "abc"}])
    run(source, tmp_path / "out.parquet", "embed_all")
    written = pq.read_table(tmp_path / "out.parquet").schema
    assert written.field("embedding").type == pa.list_(pa.float32(), 2)
    assert written.field("token_embeddings").type == pa.list_(pa.list_(pa.float32()))
    assert written.field("indices").type == pa.list_(pa.uint32())
    assert written.field("values").type == pa.list_(pa.float32())


def test_a_file_whose_rows_all_failed_has_the_columns(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": pa.array([None, None], pa.string())}), source)
    run(source, tmp_path / "out.parquet", "embed_all")
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{name: row[name] for name in columns_of("embed_all", None)} for row in rows] == [
        columns_of("embed_all", None)
    ] * 2
