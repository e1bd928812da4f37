"""One fleet behind its brokers, and the measurements of it. The parts of a run are its methods."""

import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine.host_memory import free_host_bytes
from penstock.ops.bench.common.processes import cores_used, read_cpu_s, unix_time
from penstock.ops.bench.contestants.bulk_job import run_job, write_texts
from penstock.ops.bench.contestants.worker_fleet import READY_TIMEOUT_S, FleetSpec, WorkerFleet
from penstock.ops.bench.load.call_times import recovery_s, timeline
from penstock.ops.bench.load.client_fleet import ClientFleet
from penstock.ops.bench.load.load_bench import BROKER_CONFIG, LoadBench, Record, busiest_cores, say, sleep_until
from penstock.ops.bench.load.loads import ROWS, SHORT, Load
from penstock.ops.kafka import FULL_SPEED, BrokerCluster, KafkaBroker

_ONE_COPY = {"default.replication.factor": "1", "min.insync.replicas": "1"}
RESTART_TIMEOUT_S = 60.0
KILL_AFTER_S, KILL_SECONDS = 3.0, 22.0  # a GPU member has been replaced, and the one that waits too
KILL_LOAD, DRAIN_LOAD, OVERLOAD = 0.6, 0.3, 2.0  # of saturation
_IDLE_SETTLES_S, _IDLE_S = 3.0, 3.0  # an idle GPU member first captures the shapes that it has seen
_MEMORY = Path("/dev/shm")  # a file system in memory; the broker makes a folder of its own in it
# 60 partitions of replies take 22.5 GiB at most: what is retained of each, and the segment that is written. Requests
# are a tenth of replies. The rest is for what comes between two checks of the retention.
_ROOM_BYTES = 32 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """Facts that all fleets of a run share."""

    folder: Path  # of logs
    num_brokers: int  # 1, or 3 that share the partitions
    num_clients: int
    warm_s: float
    seconds: float


class FleetBench(LoadBench):
    """Measures one fleet. Made by `open_fleet`."""

    def __init__(
        self, around: Around, brokers: KafkaBroker | BrokerCluster, workers: WorkerFleet, clients: ClientFleet
    ) -> None:
        super().__init__(brokers, workers.watched, clients)
        self._around = around
        self._workers = workers

    @property
    def num_members(self) -> int:
        """Members that are alive."""
        return len(self._workers.members())

    def warm_up(self, load: Load) -> None:
        """A load that is not measured: shapes that come for the second time are captured then."""
        self.offer(dataclasses.replace(load, name=f"warm-up, {load.name}", warm_s=0.0, seconds=self._around.seconds))

    def overload(self, peak_per_s: float, deadline_s: float) -> Record:
        """Twice what saturates the fleet, in lists, each with a deadline."""
        name, rate_per_s = f"{OVERLOAD:g} x saturation", OVERLOAD * peak_per_s
        load = dataclasses.replace(self._open(name, rate_per_s, self._around.seconds, deadline_s), rows=ROWS)
        begun = time.time()
        record = self.offer(load)
        batches = [one for one in self._workers.events("batch_done") if unix_time(one) >= begun]
        return {
            **record,
            "peak_per_s": peak_per_s,
            "in_time_share_of_peak": record["in_time_per_s"] / peak_per_s,
            "prediction_error_p95": prediction_error_p95(batches),
        }

    def kill(self, saturation_per_s: float, *, whole_gpu: bool = False) -> Record:
        """A member, or all of one GPU, killed with SIGKILL under load: what was lost, and when p99 is as before."""
        num_members = self.num_members
        victims = self._workers.members_of_last_device() if whole_gpu else self._workers.members()[-1:]
        name = f"{len(victims)} of {num_members} members killed"
        load = self._open(name, KILL_LOAD * saturation_per_s, KILL_SECONDS, timeout_s=30.0)
        killed_at = load.warm_s + KILL_AFTER_S
        found, calls = self.watch(load, KILL_AFTER_S, lambda: _kill(victims))
        record = {
            **found,
            "killed": len(victims),
            "killed_at_s": killed_at,
            "lost": float(calls.failed.sum()),
            "recovery_s": recovery_s(calls, load.warm_s, killed_at, load.span_s),
            "timeline": timeline(calls, load.warm_s, load.span_s),
            "members_after": self.num_members,
            "restart_s": None,
        }
        shown = f"{record['lost']:,.0f} lost {found['failures']}, p99 as before after {record['recovery_s']:.1f} s"
        say(f"{load.name} at {load.rate_per_s:,.0f}/s: {shown}")
        if self._workers.is_supervised and self._workers.wait_for_members(num_members, RESTART_TIMEOUT_S):
            record["restart_s"] = time.time() - found["started"] - killed_at  # at most; seen after the load
        return record

    def job(self, model: Path, rows: int) -> Record:
        """`penstock embed` over a Parquet file of texts, after a job over some of them: rates in rows a second.

        The job's seconds include reading, Kafka and writing, but not the start of Python.
        """
        folder = self._around.folder / "job"
        folder.mkdir(exist_ok=True)
        target = ["--model", "bench", "--bootstrap-servers", self._brokers.bootstrap_servers, "--overwrite"]
        for count in (max(1024, rows // 10), rows):
            source = folder / f"{count}.parquet"
            write_texts(source, count, *SHORT, model)
            command = ["embed", str(source), str(folder / "out.parquet"), *target]
            report = run_job(command, folder)
        seconds = report["last_run"]["seconds"]
        say(f"a bulk job of {rows:,} texts: {rows / seconds:,.0f} rows/s")
        return {"rows": rows, "rows_per_s": rows / seconds, "seconds": seconds}

    def idle(self) -> Record:
        """Cores that the fleet uses without any load."""
        time.sleep(_IDLE_SETTLES_S)
        watched = self.watched()
        before = read_cpu_s(watched)
        time.sleep(_IDLE_S)
        cores = cores_used(before, read_cpu_s(watched), _IDLE_S)
        say(f"idle: {busiest_cores(cores)}")
        return {"cores": cores}

    def drain(self, saturation_per_s: float) -> Record:
        """SIGTERM under load: seconds to the exit, and exit codes. The fleet is gone after that."""
        load = self._open("drain", DRAIN_LOAD * saturation_per_s, 3.0, timeout_s=5.0)
        start = self._clients.begin(load)
        sleep_until(start + load.warm_s)
        seconds, codes = self._workers.stop()
        say(f"drain at {load.rate_per_s:,.0f}/s: {seconds:.2f} s, exit codes {codes}")
        return {"load": dataclasses.asdict(load), "seconds": seconds, "exit_codes": codes}

    def batches(self) -> Record:
        """Batches of all loads so far, and how far their predicted times were off."""
        found = list(self._workers.events("batch_done"))
        if not found:
            return {"count": 0}
        sequences, tokens = np.array([(event["sequences"], event["tokens"]) for event in found], np.float64).T
        return {
            "count": len(found),
            "sequences_p50": float(np.median(sequences)),
            "tokens_p50": float(np.median(tokens)),
            "tokens_max": float(tokens.max()),
            "prediction_error_p95": prediction_error_p95(found),
        }

    def _open(self, name: str, rate_per_s: float, seconds: float, timeout_s: float) -> Load:
        load = Load(name, "ids", *SHORT, rate_per_s=rate_per_s, timeout_s=timeout_s)
        return dataclasses.replace(load, warm_s=self._around.warm_s, seconds=seconds)


@contextmanager
def open_fleet(around: Around, name: str, spec: FleetSpec, model: Path | None) -> Iterator[tuple[FleetBench, Record]]:
    """Brokers, the worker's commands and the clients; yields the bench, and how the fleet came up."""
    folder, in_memory = around.folder / name, broker_folder()
    with (
        _brokers(around.num_brokers, in_memory) as brokers,
        WorkerFleet(spec, "bench", brokers.bootstrap_servers, folder) as workers,
        ClientFleet(around.num_clients, brokers.bootstrap_servers, "bench", model, folder / "clients") as clients,
    ):
        ready_s = workers.wait_until_ready(READY_TIMEOUT_S)
        found: dict[str, Any] = {
            "command": workers.command,
            "commands": spec.commands,
            "members": len(workers.members()),
            "brokers": around.num_brokers,
            "broker_files": "disk" if in_memory is None else "memory",
            "ready_s": ready_s,
            "clients": around.num_clients,
            "environment": dict(spec.environment),
        }
        say(f"{name}: {found['members']} members ready after {ready_s:.1f} s")
        yield FleetBench(around, brokers, workers, clients), found


def _brokers(count: int, folder: Path | None) -> KafkaBroker | BrokerCluster:
    """One, or three: each record is kept once, so that three differ from one only in that they share the work."""
    if count == 1:
        return open_broker(folder)
    config = BROKER_CONFIG | _ONE_COPY
    return BrokerCluster(temporary_in=folder, num_partitions=8, config=config, jvm_flags=FULL_SPEED)


def open_broker(folder: Path | None) -> KafkaBroker:
    """One broker, whose files are in a folder of its own below `folder`, or where the system has temporary files."""
    return KafkaBroker(temporary_in=folder, num_partitions=8, config=BROKER_CONFIG, jvm_flags=FULL_SPEED)


def _kill(victims: Iterable[int]) -> None:
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def prediction_error_p95(batches: Sequence[Record]) -> float | None:
    """|predicted / measured - 1| of `batch_done` events, 95th percentile; None without any."""
    errors = [abs(one["predicted_s"] / max(one["device_s"], 1e-9) - 1) for one in batches]
    return float(np.percentile(errors, 95)) if errors else None


def broker_folder() -> Path | None:
    """The parent of its folder: in memory if there is room, so that no disk is the limit; else None, the system's.

    With records on a disk, a broker acknowledged up to 115 ms late, a second after a segment was full.
    """
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    found = os.statvfs(_MEMORY)
    room_bytes = min(found.f_bavail * found.f_frsize, free_host_bytes() or 0)  # the file system reserves no memory
    return _MEMORY if room_bytes >= _ROOM_BYTES else None
