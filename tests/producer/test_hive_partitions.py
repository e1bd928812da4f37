"""Directories of partitions: rows and types are those of pyarrow's own reader, whatever the keys' values."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.producer.files import open_reader
from penstock.producer.files.input_paths import input_paths
from tests.examples import examples

_TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=4)
_VALUES = st.none() | st.integers(-5, 5).map(str) | _TEXTS


def rows_of(folder: Path) -> tuple[pa.Schema, list[dict[str, Any]]]:
    with open_reader(input_paths([folder], folder / "out.parquet"), "text") as reader:
        batches = [block.source for block in reader]
        return reader.schema, pa.Table.from_batches(batches, reader.schema).to_pylist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(_VALUES, st.none() | st.integers(-5, 5)), min_size=1, max_size=6))
def test_rows_are_those_of_pyarrow(tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[Any, Any]]) -> None:
    folder = tmp_path_factory.mktemp("data")
    languages, days = zip(("en", 1), *keys, strict=True)  # pyarrow has no type for a key that is null in all files
    columns = {"text": [f"text {number}" for number in range(len(languages))], "lang": languages, "day": days}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    pq.write_to_dataset(table, folder, partition_cols=["lang", "day"])
    schema, rows = rows_of(folder)
    whole = ds.dataset(folder, partitioning=ds.HivePartitioning.discover(infer_dictionary=False)).to_table()
    assert schema.equals(whole.schema)
    assert sorted(rows, key=lambda row: row["text"]) == sorted(whole.to_pylist(), key=lambda row: row["text"])
