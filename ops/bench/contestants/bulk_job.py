"""A bulk job as a user starts it, in a process of its own, and the table that it reads."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.common.processes import run_to_end
from penstock.ops.bench.contestants.worker_fleet import PENSTOCK
from penstock.ops.bench.load.payloads import vocabulary_words

_BLOCK_ROWS = 65_536  # written at once, so that the size of the table is not that of this process


def run_job(arguments: Sequence[str], folder: Path, timeout_s: float = 600.0) -> dict[str, Any]:
    """Run `penstock …`, which must succeed: see `run_to_end`. Returns its report."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    run_to_end([*PENSTOCK, *arguments, "--report", str(report)], folder / "job.log", timeout_s)
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found


def write_texts(path: Path, rows: int, low: int, high: int, model: Path) -> None:
    """A Parquet file of `id` and `text`: texts of `low` to `high` words, which are one token each of the checkpoint."""
    words = vocabulary_words(model)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with ParquetWriter(path, schema) as writer:
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
