"""The share of the engine alone that a job over a Parquet file reaches, both over the same texts in one run."""

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from penstock.ops.bench.bulk.input_tables import write_texts
from penstock.ops.bench.bulk.job_process import run_job
from penstock.ops.bench.common.processes import cores_used, read_cpu_s, run_once
from penstock.ops.bench.common.run_clock import RunClock
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.bench.load.load_bench import BROKER_CONFIG
from penstock.ops.kafka import FAST_START, FULL_SPEED, KafkaBroker

WORDS = (2, 100)
TASKS = ("embed", "classify")
_NUM_LABELS = 77
_READY_TIMEOUT_S = 120.0
_WARM_UP = 0.1  # of the rows, in a job that is not measured
_ALONE_LEAST_S, _JOB_LEAST_S = 15.0, 8.0

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShareRun:
    """One measurement."""

    model: Path
    device: str
    rows: int
    rounds: int  # of the engine alone, and of a job of each task
    worker_arguments: list[str]
    folder: Path  # of tables and logs
    clock: RunClock

    def measure(self) -> Record:
        """Rates in rows a second. The engine alone runs before the jobs, and after them if there is time."""
        source, few = self.folder / "texts.parquet", self.folder / "few.parquet"
        write_texts(source, self.rows, *WORDS, self.model)
        write_texts(few, max(1024, int(_WARM_UP * self.rows)), *WORDS, self.model)
        size_mb = source.stat().st_size / 1e6
        self.clock.say(f"{self.rows:,} texts of {WORDS[0]} to {WORDS[1]} words, {size_mb:.0f} MB of Parquet")
        begun_s = self.clock.elapsed_s
        alone = [self._alone(source)]
        alone_s = self.clock.elapsed_s - begun_s
        members, jobs = self._jobs(source, few)
        if self.clock.left_s > 1.5 * alone_s:
            alone.append(self._alone(source))
        figures = self._figures(alone, jobs)
        for task in jobs:
            self.clock.say(f"{task}, share of the engine alone: {figures['share'][task]}")
        return {**figures, "members": members}

    def _alone(self, source: Path) -> Record:
        self.clock.require(_ALONE_LEAST_S, "the engine alone")
        spec = {"model": str(self.model), "file": str(source), "device": self.device, "rounds": self.rounds}
        found = run_once("contestants.engine_alone", spec, self.folder / "alone.log", self.clock.left_s)
        rates = {kind: [f"{self.rows / each:,.0f}" for each in passes] for kind, passes in found["seconds"].items()}
        self.clock.say(f"engine alone, texts/s: {rates}; tokenizer alone {self.rows / found['tokenize_s']:,.0f}")
        return found

    def _jobs(self, source: Path, few: Path) -> tuple[int, dict[str, list[Record]]]:
        """The number of members, and the measured jobs by task. The worker has a random head on its embeddings."""
        head = self.folder / "head.safetensors"
        _save_head(self.model, head)
        spec = FleetSpec(str(self.model), ("--device", self.device, "--head", str(head), *self.worker_arguments))
        jobs: dict[str, list[Record]] = {}
        with (
            KafkaBroker(config=BROKER_CONFIG, jvm_flags=FULL_SPEED if self.device == "cuda" else FAST_START) as broker,
            WorkerFleet(spec, "bench", broker.bootstrap_servers, self.folder) as fleet,
        ):
            ready_s = fleet.wait_until_ready(min(_READY_TIMEOUT_S, self.clock.left_s))
            self.clock.say(f"{len(fleet.members())} members ready after {ready_s:.1f} s")
            serving = {"broker": broker.pid or 0, **fleet.watched()}
            self._job("embed", few, broker.bootstrap_servers, serving)
            for _ in range(self.rounds):
                for task in TASKS:
                    jobs.setdefault(task, []).append(self._job(task, source, broker.bootstrap_servers, serving))
            return len(fleet.members()), jobs

    def _job(self, task: str, table: Path, servers: str, serving: dict[str, int]) -> Record:
        self.clock.require(_JOB_LEAST_S, f"a job of {task}")
        command = [task, str(table), str(self.folder / "out.parquet"), "--overwrite"]
        command += ["--model", "bench", "--bootstrap-servers", servers]
        before = read_cpu_s(serving)
        run = run_job(command, self.folder, self.clock.left_s)
        seconds, rows = run.report["last_run"]["seconds"], run.report["rows"]
        cpu_s = {"job": run.cpu_s, **cores_used(before, read_cpu_s(serving), 1.0)}
        cores = {label: f"{used_s / seconds:.2f}" for label, used_s in cpu_s.items()}
        self.clock.say(f"{task} of {rows:,} rows: {rows / seconds:,.0f} rows/s; cores {cores}")
        return {"seconds": seconds, "wall_s": run.wall_s, "cpu_s": cpu_s}

    def _figures(self, alone: list[Record], jobs: dict[str, list[Record]]) -> Record:
        def alone_per_s(kind: str) -> float:
            seconds: list[float] = [each for one in alone for each in one["seconds"][kind]]
            return self.rows / statistics.median(seconds)

        rates = {"of_texts": alone_per_s("of_texts"), "of_ids": alone_per_s("of_ids")}
        alone_cpu_s = statistics.median([each for one in alone for each in one["cpu_s"]])
        found: Record = {"rows_per_s": {}, "share": {}}
        for task, runs in jobs.items():
            rate = self.rows / statistics.median([one["seconds"] for one in runs])
            found["rows_per_s"][task] = rate
            found["share"][task] = {kind: rate / other for kind, other in rates.items()}
            # Other work on the machine changes processor time less than wall time. Where the cores are never idle, both
            # give the same share.
            cpu_s = statistics.median([sum(one["cpu_s"].values()) for one in runs])
            found["share"][task]["by_processor_time"] = alone_cpu_s / cpu_s
        return {
            "rows": self.rows,
            "tokens": alone[0]["tokens"],
            "words": list(WORDS),
            "cores": len(os.sched_getaffinity(0)),
            "engine_alone_rows_per_s": rates,
            **found,
            "alone": alone,
            "jobs": jobs,
        }


def _save_head(model: Path, path: Path) -> None:
    """A random classifier on the embeddings of a checkpoint."""
    width = json.loads((model / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    weight = np.random.default_rng(0).standard_normal((_NUM_LABELS, width)).astype(np.float32)
    labels = json.dumps([f"label {number}" for number in range(_NUM_LABELS)])
    save_file({"weight": weight, "bias": np.zeros(_NUM_LABELS, np.float32)}, path, {"labels": labels})
