"""A job over real texts, killed three times with SIGKILL, beside an undisturbed one: are the outputs equal?"""

import csv
import functools
import hashlib
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as pa_csv
from pyarrow import parquet

from penstock.ops.bench.bulk.job_process import run_job, run_whole_job
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import KafkaBroker

_NUM_KILLS = 3
_KILL_AFTER = 0.25  # of the undisturbed job's time
_READY_TIMEOUT_S = 120.0
_NUMBERS = ("score", "embedding")  # columns of which the last bits may differ


def measure_kills(spec: FleetSpec, task: str, tables: Sequence[Path], folder: Path, clock: RunClock) -> dict[str, Any]:
    """Both formats: `tables` as they are (CSV), and as one Parquet file.

    Raises:
        ProcessFailed: a job failed.
    """
    source = folder / "in.parquet"
    rows = pa.concat_tables([pa_csv.read_csv(table) for table in tables])
    parquet.write_table(rows, source)
    found: dict[str, Any] = {"rows": len(rows), "task": task}
    with (
        KafkaBroker(num_partitions=8) as broker,
        WorkerFleet(spec, "bench", broker.bootstrap_servers, folder) as fleet,
    ):
        fleet.wait_until_ready(_READY_TIMEOUT_S)
        options = ["--model", "bench", "--bootstrap-servers", broker.bootstrap_servers]
        for extension, inputs in (("csv", list(map(str, tables))), ("parquet", [str(source)])):
            whole, target = folder / f"whole.{extension}", folder / f"out.{extension}"
            run, report = run_whole_job([task, *inputs, str(whole), *options], folder, clock.left_s)
            if report["rows"] != len(rows) or report["failed"]:
                raise ProcessFailed(f"{report['rows']:,} rows, {report['failed']:,} failed, of {len(rows):,}.")
            clock.say(f"{extension}: undisturbed, {run.wall_s:.1f} s, SHA-256 {_digest(whole)}")
            killed = [task, *inputs, str(target), *options]
            kept = _kill(killed, target, _KILL_AFTER * run.wall_s, folder, clock)
            run_whole_job(killed, folder, clock.left_s)
            found[extension] = {"rows_finished_at_kills": kept, **_compared(whole, target)}
            clock.say(f"{extension}: killed three times, SHA-256 {_digest(target)}; {found[extension]}")
    return found


def _kill(arguments: list[str], target: Path, after_s: float, folder: Path, clock: RunClock) -> list[int]:
    """Rows that were finished at each kill: a run is killed after `after_s`, once it has finished rows of its own."""
    manifest = target.with_name(f"{target.name}.parts") / "manifest.json"
    kept: list[int] = []
    for _ in range(_NUM_KILLS):
        is_due = functools.partial(is_kill_due, manifest, kept[-1] if kept else 0, time.monotonic() + after_s)
        run = run_job(arguments, folder / "job.log", end_when=is_due, timeout_s=clock.left_s)
        if run.exit_code != -signal.SIGKILL:
            raise ProcessFailed(f"The job ended with {run.exit_code} before it was killed:\n{run.said[-2000:]}")
        kept.append(_finished_rows(manifest))
    return kept


def is_kill_due(manifest: Path, rows_before: int, at_s: float) -> bool:
    """Whether the moment has come, and more rows are finished than at the last kill."""
    return time.monotonic() >= at_s and _finished_rows(manifest) > rows_before


def _finished_rows(manifest: Path) -> int:
    """Rows that a job's manifest lists as finished; 0 before it is written."""
    if not manifest.exists():
        return 0
    return int(json.loads(manifest.read_text(encoding="utf-8"))["report"]["rows"])


def _compared(whole: Path, target: Path) -> dict[str, Any]:
    """Whether the files are equal, and how far apart they are."""
    pairs = list(zip(_rows(whole), _rows(target), strict=True))
    exact = [name for name in pairs[0][0] if name not in _NUMBERS]
    scores = [(float(one["score"]), float(other["score"])) for one, other in pairs if one.get("score")]
    return {
        "equal_bytes": whole.read_bytes() == target.read_bytes(),
        "rows_that_differ": sum(one != other for one, other in pairs),
        "rows_that_differ_beside_numbers": sum(any(one[name] != other[name] for name in exact) for one, other in pairs),
        "largest_difference_of_scores": max((abs(one - other) for one, other in scores), default=None),
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(parquet.read_table(path).to_pylist())
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
