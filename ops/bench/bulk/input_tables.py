"""Input tables of the benchmark, written in blocks: their size is not that of this process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow.parquet import ParquetWriter

from penstock.ops.bench.common.lengths import uniform
from penstock.ops.bench.pipeline.payloads import vocabulary_words

_BLOCK_ROWS = 65_536
_WORDS = np.array([f"word{number}" for number in range(5000)])


def write_texts(path: Path, rows: int, low: int, high: int, model: Path | None) -> None:
    """A Parquet or CSV file of `id` and `text`: texts of `low` to `high` words.

    Args:
        model: checkpoint whose vocabulary has the words, so that they are one token each; None: no words of any.
    """
    words = _WORDS if model is None else vocabulary_words(model)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    is_csv = path.suffix == ".csv"
    with pa_csv.CSVWriter(path, schema) if is_csv else ParquetWriter(path, schema) as writer:
        for block in _blocks(rows, low, high, words):
            writer.write_table(pa.table(block, schema=schema))


def _blocks(rows: int, low: int, high: int, words: np.ndarray) -> Iterator[dict[str, object]]:
    for start in range(0, rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, rows - start)
        lengths = uniform(low, high, count, seed=start)
        drawn = np.random.default_rng(start).choice(words, int(lengths.sum())).tolist()
        ends = np.cumsum(lengths).tolist()
        texts = [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
        yield {"id": range(start, start + count), "text": texts}
