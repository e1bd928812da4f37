"""A bulk job as a user starts it, in a process of its own, and the table that it reads."""

import json
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from penstock.ops.bench.common.draws import uniform
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.contestants.worker_fleet import PENSTOCK
from penstock.ops.bench.load.payloads import vocabulary_words

_BLOCK_ROWS = 65_536  # written at once, so that the size of the table is not that of this process


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a command to its end."""

    wall_s: float  # of the whole process
    cpu_s: float
    report: dict[str, Any]


def run_job(arguments: Sequence[str], folder: Path, timeout_s: float = 600.0) -> JobRun:
    """Run `penstock …`, which must succeed. Nothing else that this process started may end meanwhile.

    Raises:
        ProcessFailed: it failed, or did not end in time.
    """
    report, log = folder / "report.json", folder / "job.log"
    report.unlink(missing_ok=True)
    command = [*PENSTOCK, *arguments, "--report", str(report)]
    before_s, begun = _ended_cpu_s(), time.monotonic()
    with log.open("wb") as said:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"The job did not end within {timeout_s:g} s.") from error
    wall_s, cpu_s = time.monotonic() - begun, _ended_cpu_s() - before_s
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise ProcessFailed(f"The job ended with exit code {done.returncode}:\n{text[-2000:]}")
    return JobRun(wall_s, cpu_s, json.loads(report.read_text(encoding="utf-8")))


def _ended_cpu_s() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
