"""The share of the engine alone that a job over a Parquet file reaches, both over the same texts in one run."""

import os
import statistics
from pathlib import Path
from typing import Any

from penstock.ops.bench.bulk.job_process import JobRun, run_whole_job
from penstock.ops.bench.bulk.tables import write_texts
from penstock.ops.bench.common.processes import run_once
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.process_cpu import cores_used, read_cpu_s
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

WORDS = (2, 100)
_READY_TIMEOUT_S = 120.0
_WARM_UP = 0.1  # of the rows, in a job that is not measured
_ALONE_LEAST_S, _JOB_LEAST_S = 15.0, 8.0


def measure_share(
    model: Path, device: str, rows: int, rounds: int, worker_arguments: list[str], folder: Path, clock: RunClock
) -> dict[str, Any]:
    """Rates in rows a second. The engine alone runs before the jobs, and after them if there is time."""
    source, few = folder / "texts.parquet", folder / "few.parquet"
    write_texts(source, rows, *WORDS, model)
    write_texts(few, max(1024, int(_WARM_UP * rows)), *WORDS, model)
    clock.say(f"{rows:,} texts of {WORDS[0]} to {WORDS[1]} words: {source.stat().st_size / 1e6:.0f} MB of Parquet")
    begun_s = clock.elapsed_s
    alone = [_alone(model, device, source, rounds, folder, clock)]
    alone_s = clock.elapsed_s - begun_s
    jobs: list[dict[str, Any]] = []
    with KafkaBroker(num_partitions=8, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker:
        spec = FleetSpec(str(model), ("--device", device, *worker_arguments))
        with WorkerFleet(spec, "bench", broker.bootstrap_servers, folder) as fleet:
            ready_s = fleet.wait_until_ready(min(_READY_TIMEOUT_S, clock.left_s))
            members = len(fleet.members())
            clock.say(f"{members} members ready after {ready_s:.1f} s")
            options = ["--model", "bench", "--bootstrap-servers", broker.bootstrap_servers, "--overwrite"]
            for number in range(rounds + 1):
                clock.require(_JOB_LEAST_S, "a job")
                table = few if number == 0 else source
                command = ["embed", str(table), str(folder / "out.parquet"), *options]
                serving = {"broker": broker.pid or 0, **fleet.watched()}
                before = read_cpu_s(serving)
                run, report = run_whole_job(command, folder, clock.left_s)
                job = _job_figures(run, report, cores_used(before, read_cpu_s(serving), 1.0))
                shown = {label: f"{used_s / job['seconds']:.2f}" for label, used_s in job["cpu_s"].items()}
                clock.say(
                    f"job of {report['rows']:,} rows: {report['rows'] / job['seconds']:,.0f} rows/s; cores {shown}"
                )
                if number > 0:
                    jobs.append(job)
    if clock.left_s > 1.5 * alone_s:
        alone.append(_alone(model, device, source, rounds, folder, clock))
    figures = _figures(rows, alone, jobs, members)
    clock.say(
        f"share of the engine alone: {figures['share']}; by processor time {figures['share_of_processor_time']:.3f}"
    )
    return figures


def _job_figures(run: JobRun, report: dict[str, Any], serving_cpu_s: dict[str, float]) -> dict[str, Any]:
    return {
        "seconds": report["last_run"]["seconds"],
        "wall_s": run.wall_s,
        "cpu_s": {"job": run.cpu_s, **serving_cpu_s},
        "peak_rss_bytes": run.peak_rss_bytes,
    }


def _alone(model: Path, device: str, source: Path, rounds: int, folder: Path, clock: RunClock) -> dict[str, Any]:
    clock.require(_ALONE_LEAST_S, "the engine alone")
    spec = {"model": str(model), "file": str(source), "device": device, "untimed": 1, "rounds": rounds}
    found = run_once("bulk.alone_process", spec, folder / "alone.log", clock.left_s)
    rates = {kind: [f"{found['rows'] / each:,.0f}" for each in seconds] for kind, seconds in found["seconds"].items()}
    clock.say(f"engine alone, texts/s: {rates}; tokenizer alone {found['rows'] / found['tokenize_s']:,.0f}")
    return found


def _figures(rows: int, alone: list[dict[str, Any]], jobs: list[dict[str, Any]], members: int) -> dict[str, Any]:
    def rate(kind: str) -> float:
        seconds: list[float] = [each for one in alone for each in one["seconds"][kind]]
        return rows / statistics.median(seconds)

    job = rows / statistics.median(one["seconds"] for one in jobs)
    alone_cpu_s = statistics.median([each for one in alone for each in one["cpu_s"]])
    found = {"of_texts": rate("of_texts"), "of_ids": rate("of_ids")}
    return {
        "rows": rows,
        "tokens": alone[0]["tokens"],
        "words": list(WORDS),
        "members": members,
        "cores": len(os.sched_getaffinity(0)),
        "rows_per_s": job,
        "rows_per_s_of_command": rows / statistics.median(one["wall_s"] for one in jobs),
        "engine_alone_rows_per_s": found,
        "share": {kind: job / alone_rate for kind, alone_rate in found.items()},
        # Processor seconds, which other work on the machine hardly changes: the share on cores that are never idle.
        "share_of_processor_time": alone_cpu_s / statistics.median(sum(one["cpu_s"].values()) for one in jobs),
        "alone": alone,
        "jobs": jobs,
    }
