"""A job of millions of rows through a worker that computes nothing: its memory, and that every row is in its place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow.parquet import ParquetFile

from penstock.ops.bench.bulk.echo_worker import PROGRAM, marks_of
from penstock.ops.bench.bulk.input_tables import write_texts
from penstock.ops.bench.bulk.job_process import run_whole_job
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.pipeline_plan import NULL, NULL_WORKER
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

MOST_BYTES = 1_000_000_000  # of the job's own process
_WORDS = (2, 20)
_READY_TIMEOUT_S = 60.0


def measure_memory(rows: int, extension: str, folder: Path, clock: RunClock) -> dict[str, Any]:
    """Run a job of `rows` rows.

    Raises:
        ProcessFailed: the job failed, took more memory than `MOST_BYTES`, or a row is missing or in another's place.
    """
    source, target = folder / f"texts.{extension}", folder / f"out.{extension}"
    write_texts(source, rows, *_WORDS, None)
    clock.say(f"{rows:,} rows written: {source.stat().st_size / 1e6:.0f} MB")
    with KafkaBroker(num_partitions=8, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker:
        spec = FleetSpec(NULL, NULL_WORKER, program=PROGRAM)
        with WorkerFleet(spec, "bench", broker.bootstrap_servers, folder) as fleet:
            fleet.wait_until_ready(_READY_TIMEOUT_S)
            command = ["embed", str(source), str(target), "--model", "bench"]
            command += ["--bootstrap-servers", broker.bootstrap_servers]
            run, report = run_whole_job(command, folder, clock.left_s)
    seconds = report["last_run"]["seconds"]
    peak = run.peak_rss_bytes
    clock.say(f"{rows / seconds:,.0f} rows/s; peak memory {peak / 1e6:,.0f} MB; {run.cpu_s / rows * 1e6:.1f} µs a row")
    source.unlink()
    _check_rows(target, rows)
    clock.say("every row is in its place, with its own answer")
    if peak > MOST_BYTES:
        raise ProcessFailed(f"The job took {peak:,} bytes; at most {MOST_BYTES:,} are allowed.")
    return {
        "rows": rows,
        "format": extension,
        "rows_per_s": rows / seconds,
        "seconds": seconds,
        "cpu_us_per_row": run.cpu_s / rows * 1e6,
        "peak_rss_bytes": peak,
        "rss_bytes_each_second": list(run.rss_bytes),
    }


def _check_rows(path: Path, rows: int) -> None:
    """The ids ascend from 0 without a gap, and each row has the answer to its own text."""
    expected = 0
    for ids, texts, vectors in _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path):
        if not np.array_equal(ids, np.arange(expected, expected + len(ids))):
            raise ProcessFailed(f"A row is missing, repeated or out of order near row {expected:,}.")
        if not np.array_equal(vectors, marks_of(texts)):
            raise ProcessFailed(f"A row has the answer to another near row {expected:,}.")
        expected += len(ids)
    if expected != rows:
        raise ProcessFailed(f"The output has {expected:,} rows instead of {rows:,}.")


Rows = Iterator[tuple[np.ndarray, list[str], np.ndarray]]


def _parquet_rows(path: Path) -> Rows:
    with ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=65_536):
            vectors = batch.column("embedding").flatten().to_numpy().reshape(-1, 2)
            yield batch.column("id").to_numpy(), batch.column("text").to_pylist(), vectors


def _csv_rows(path: Path) -> Rows:
    types = {"id": pa.int64(), "text": pa.string(), "embedding": pa.string(), "error": pa.string()}
    with pa_csv.open_csv(path, convert_options=pa_csv.ConvertOptions(column_types=types)) as file:
        for batch in file:
            vectors = [[float(number) for number in row.strip("[]").split(",")] for row in batch[2].to_pylist()]
            yield batch[0].to_numpy(), batch[1].to_pylist(), np.array(vectors)
