"""One fleet behind its brokers, and the measurements of it. The parts of a run are its methods."""

import dataclasses
import math
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.pipeline.broker_folder import broker_folder
from penstock.ops.bench.pipeline.broker_log import LOG_PAUSES
from penstock.ops.bench.pipeline.call_times import figures, recovery_s, timeline
from penstock.ops.bench.pipeline.client_fleet import ClientFleet
from penstock.ops.bench.pipeline.late_causes import LateCauses
from penstock.ops.bench.pipeline.load_line import busiest_cores, load_line
from penstock.ops.bench.pipeline.loads import ROWS, SHORT, Load
from penstock.ops.bench.pipeline.member_events import member_events
from penstock.ops.bench.pipeline.prediction_errors import prediction_errors
from penstock.ops.bench.pipeline.process_cpu import cores_used, read_cpu_s
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import FULL_SPEED, BrokerCluster, KafkaBroker

Record = dict[str, Any]

# More threads than a broker's default, so that it is not the limit; and its disk use stays bounded.
BROKER_CONFIG = {
    "num.network.threads": "8",
    "log.segment.bytes": str(128 << 20),
    "log.retention.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}
_ONE_COPY = {"default.replication.factor": "1", "min.insync.replicas": "1"}
READY_TIMEOUT_S, RESTART_TIMEOUT_S = 240.0, 60.0
KILL_AFTER_S, KILL_SECONDS = 3.0, 22.0  # a GPU member has been replaced, and the one that waits too
KILL_LOAD, DRAIN_LOAD, OVERLOAD = 0.6, 0.3, 2.0  # of saturation
_IDLE_SETTLES_S, _IDLE_S = 3.0, 3.0  # an idle GPU member first captures the shapes that it has seen
_LOAD_OVERHEAD_S = 2.0  # connecting clients, making sequences, the last answers


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """Facts that all fleets of a run share."""

    clock: RunClock
    folder: Path  # of logs
    num_brokers: int  # 1, or 3 that share the partitions
    num_clients: int
    warm_s: float
    seconds: float


class FleetBench:
    """Measures one fleet. Made by `open_fleet`."""

    def __init__(
        self,
        bench: Bench,
        brokers: KafkaBroker | BrokerCluster,
        workers: WorkerFleet,
        clients: ClientFleet,
        causes: LateCauses,
    ) -> None:
        self._bench = bench
        self._brokers = brokers
        self._workers = workers
        self._clients = clients
        self._causes = causes
        self._loads: list[tuple[str, float, float]] = []  # name, and Unix times of the measured seconds

    @property
    def num_members(self) -> int:
        """Members that are alive."""
        return len(self._workers.members())

    def offer(self, load: Load) -> Record:
        """One load: its figures, the cores that every process used, and its failures."""
        self._bench.clock.require(load.span_s + _LOAD_OVERHEAD_S, load.name)
        with self._causes.watched(is_open_loop=load.rate_per_s > 0):
            start = self._clients.begin(load)
            watched = self._watched()
            _sleep_until(start + load.warm_s)
            before, begun = read_cpu_s(watched), time.time()
            _sleep_until(start + load.span_s)
            cores = cores_used(before, read_cpu_s(watched), load.seconds)
        self._loads.append((load.name, begun, time.time()))
        offered = self._clients.collect(load, start)
        record = {
            "load": dataclasses.asdict(load),
            **figures(load, offered.calls),
            "failures": offered.failures,
            "lag_p99_ms": offered.lag_p99_ms,
            **self._causes.between(start + load.warm_s, load.seconds),
            "cores": cores,
        }
        self._bench.clock.say(load_line(load, record))
        return record

    def warm_up(self, load: Load) -> None:
        """A load that is not measured: shapes that come for the second time are captured then."""
        self.offer(dataclasses.replace(load, name=f"warm-up, {load.name}", warm_s=0.0, seconds=self._bench.seconds))

    def overload(self, peak_per_s: float, deadline_s: float) -> Record:
        """Twice what saturates the fleet, in lists, each with a deadline."""
        low, high = SHORT
        load = Load(
            f"{OVERLOAD:g} x saturation",
            "ids",
            low,
            high,
            ROWS,
            rate_per_s=OVERLOAD * peak_per_s,
            timeout_s=deadline_s,
            warm_s=self._bench.warm_s,
            seconds=self._bench.seconds,
        )
        begun = time.time()
        record = self.offer(load)
        errors = prediction_errors(_ended(self._workers.events("batch_done"), begun, math.inf))
        return {
            **record,
            "peak_per_s": peak_per_s,
            "in_time_share_of_peak": record["in_time_per_s"] / peak_per_s,
            "prediction_error_p95": errors["p95"],
        }

    def kill(self, saturation_per_s: float, *, whole_gpu: bool = False) -> Record:
        """A member, or all of one GPU, killed with SIGKILL under load: what was lost, and when p99 is as before."""
        num_members = self.num_members
        victims = self._workers.members_of_last_device() if whole_gpu else self._workers.members()[-1:]
        load = self._single_calls(
            f"{len(victims)} of {num_members} members killed",
            KILL_LOAD * saturation_per_s,
            KILL_SECONDS,
            timeout_s=30.0,
        )
        self._bench.clock.require(load.span_s + _LOAD_OVERHEAD_S, load.name)
        killed_at = load.warm_s + KILL_AFTER_S
        with self._causes.watched(is_open_loop=True):
            start = self._clients.begin(load)
            _sleep_until(start + killed_at)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            _sleep_until(start + load.span_s)
        offered = self._clients.collect(load, start)
        record = {
            "load": dataclasses.asdict(load),
            "killed": len(victims),
            "killed_at_s": killed_at,
            "lost": float(offered.calls.failed.sum()),
            "failures": offered.failures,
            "recovery_s": recovery_s(offered.calls, load.warm_s, killed_at, load.span_s),
            "timeline": timeline(offered.calls, load.warm_s, load.span_s),
            "members_after": self.num_members,
            "restart_s": None,
        }
        shown = f"{record['lost']:,.0f} lost {offered.failures}, p99 as before after {record['recovery_s']:.1f} s"
        self._bench.clock.say(f"{load.name} at {load.rate_per_s:,.0f}/s: {shown}")
        if self._workers.is_supervised and self._workers.wait_for_members(num_members, RESTART_TIMEOUT_S):
            record["restart_s"] = time.perf_counter() - start - killed_at  # at most; seen after the load
        begun = time.time() - (time.perf_counter() - start)
        record["events"] = member_events(self._workers.events, begun)
        return record | self._causes.between(start, load.span_s)

    def idle(self) -> Record:
        """Cores that the fleet uses without any load."""
        self._bench.clock.require(_IDLE_SETTLES_S + _IDLE_S, "idle")
        time.sleep(_IDLE_SETTLES_S)
        watched = self._watched()
        before = read_cpu_s(watched)
        time.sleep(_IDLE_S)
        cores = cores_used(before, read_cpu_s(watched), _IDLE_S)
        self._bench.clock.say(f"idle: {busiest_cores(cores)}")
        return {"cores": cores}

    def drain(self, saturation_per_s: float) -> Record:
        """SIGTERM under load: seconds to the exit, and exit codes. The fleet is gone after that."""
        load = self._single_calls("drain", DRAIN_LOAD * saturation_per_s, 3.0, timeout_s=5.0)
        self._bench.clock.require(load.span_s + _LOAD_OVERHEAD_S, load.name)
        start = self._clients.begin(load)
        _sleep_until(start + load.warm_s)
        seconds, codes = self._workers.stop()
        self._bench.clock.say(f"drain at {load.rate_per_s:,.0f}/s: {seconds:.2f} s, exit codes {codes}")
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
            "prediction_error_p95": prediction_errors(found)["p95"],
            "prediction_errors": {
                name: prediction_errors(_ended(found, since, until)) for name, since, until in self._loads
            },
        }

    def _single_calls(self, name: str, rate_per_s: float, seconds: float, timeout_s: float) -> Load:
        low, high = SHORT
        return Load(
            name,
            "ids",
            low,
            high,
            rate_per_s=rate_per_s,
            timeout_s=timeout_s,
            warm_s=self._bench.warm_s,
            seconds=seconds,
        )

    def _watched(self) -> dict[str, int]:
        brokers = {f"broker {number}": node.pid for number, node in enumerate(self._brokers.nodes)}
        alive = {label: pid for label, pid in brokers.items() if pid is not None}
        if len(alive) < len(brokers):
            raise ProcessFailed("A broker ended.")
        return {**alive, **self._workers.watched(), **self._clients.watched()}


@contextmanager
def open_fleet(bench: Bench, name: str, spec: FleetSpec, model: Path | None) -> Iterator[tuple[FleetBench, Record]]:
    """Brokers, the worker's commands and the clients; yields the bench, and how the fleet came up."""
    folder, in_memory = bench.folder / name, broker_folder()
    with _brokers(bench.num_brokers, in_memory) as brokers, ExitStack() as stack:
        servers = brokers.bootstrap_servers
        workers = stack.enter_context(WorkerFleet(spec, "bench", servers, folder))
        clients = stack.enter_context(ClientFleet(bench.num_clients, servers, "bench", model, folder / "clients"))
        ready_s = workers.wait_until_ready(min(READY_TIMEOUT_S, bench.clock.left_s))
        found = {
            "command": workers.command,
            "commands": spec.commands,
            "members": len(workers.members()),
            "brokers": bench.num_brokers,
            "broker_files": "disk" if in_memory is None else "memory",
            "ready_s": ready_s,
            "clients": bench.num_clients,
            "environment": dict(spec.environment),
        }
        bench.clock.say(f"{name}: {found['members']} members ready after {ready_s:.1f} s")
        logs = [node.log_path for node in brokers.nodes]
        yield FleetBench(bench, brokers, workers, clients, LateCauses(logs, servers)), found


def _brokers(count: int, folder: Path | None) -> KafkaBroker | BrokerCluster:
    """One, or three: each record is kept once, so that three differ from one only in that they share the work."""
    flags = (*FULL_SPEED, LOG_PAUSES)
    if count == 1:
        return KafkaBroker(temporary_in=folder, num_partitions=8, config=BROKER_CONFIG, jvm_flags=flags)
    config = BROKER_CONFIG | _ONE_COPY
    return BrokerCluster(temporary_in=folder, num_partitions=8, config=config, jvm_flags=flags)


def _ended(batches: Iterable[Record], since: float, until: float) -> list[Record]:
    """Those of the batches' events that were logged between two Unix times."""
    return [one for one in batches if since <= datetime.fromisoformat(one["timestamp"]).timestamp() < until]


def _sleep_until(moment: float) -> None:
    """`moment` is of perf_counter."""
    time.sleep(max(0.0, moment - time.perf_counter()))
