"""Several fleets behind one broker, which take turns at the same loads."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.comparison import Comparison, Grid
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.delivery.delivery_tables import PROCESSES
from penstock.ops.bench.pipeline.client_fleet import ClientFleet
from penstock.ops.bench.pipeline.fleet_bench import READY_TIMEOUT_S, Bench, FleetBench
from penstock.ops.bench.pipeline.late_causes import LateCauses
from penstock.ops.bench.pipeline.loads import Load
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import KafkaBroker
from penstock.producer.keywords import IsolationLevel

_LIMIT_S = 600.0
_WORKER = ("member", "supervisor")

Record = dict[str, Any]
Turns = dict[str, dict[str, list[Record]]]  # load -> side -> its rounds


def make_bench(setup: Setup, name: str, seconds: float) -> Bench:
    """One client process, on two cores."""
    return Bench(
        RunClock(_LIMIT_S, print), setup.logs / name, num_brokers=1, num_clients=1, warm_s=0.0, seconds=seconds
    )


@contextmanager
def open_side(
    bench: Bench,
    broker: KafkaBroker,
    name: str,
    spec: FleetSpec,
    model: Path | None,
    isolation_level: IsolationLevel = "read_uncommitted",
) -> Iterator[FleetBench]:
    """One of the fleets, with a client of its own."""
    folder, servers = bench.folder / name, broker.bootstrap_servers
    with (
        WorkerFleet(spec, name, servers, folder) as workers,
        ClientFleet(bench.num_clients, servers, name, model, folder / "clients", isolation_level) as clients,
    ):
        workers.wait_until_ready(READY_TIMEOUT_S)
        yield FleetBench(bench, broker, workers, clients, LateCauses([broker.log_path], servers))


def in_turns(sides: Mapping[str, FleetBench], loads: Sequence[Load], rounds: int = ROUNDS) -> Turns:
    """Every load `rounds` times on each side, the order of the sides reversed from round to round."""
    names = list(sides)
    for side in sides.values():
        side.warm_up(loads[-1])
    found: Turns = {load.name: {name: [] for name in names} for load in loads}
    for number in range(rounds):
        for load in loads:
            for name in names if number % 2 == 0 else reversed(names):
                found[load.name][name].append(_figures(load, sides[name].offer(load)))
    return found


def _figures(load: Load, record: Record) -> Record:
    records_per_s = record["requests_per_s"] / load.rows
    if not records_per_s:
        raise ProcessFailed(f"{load.name}: nothing was answered in the measured {load.seconds:g} s.")
    used = {kind: _cores(record["cores"], kind) for kind in PROCESSES}
    return {**record, "records_per_s": records_per_s, "cpu_us": {k: v / records_per_s * 1e6 for k, v in used.items()}}


def _cores(cores: Mapping[str, float], kind: str) -> float:
    labels = _WORKER if kind == "worker" else (kind,)
    return sum(used for label, used in cores.items() if label.startswith(labels))


def rate(rounds: Sequence[Record]) -> float:
    """Median requests a second."""
    return statistics.median([float(record["requests_per_s"]) for record in rounds])


def cpu_us(rounds: Sequence[Record], process: str) -> float:
    """Median processor microseconds a record."""
    return statistics.median([float(record["cpu_us"][process]) for record in rounds])


def compare(work: str, ours: Sequence[Record], other: str, others: Sequence[Record]) -> Comparison:
    """Throughput of one load."""
    return Comparison(
        work=work,
        ours=f"{rate(ours):,.0f} req/s, worker {cpu_us(ours, 'worker'):.1f} µs a record",
        baseline=f"{other} {rate(others):,.0f} req/s, worker {cpu_us(others, 'worker'):.1f} µs a record",
        ratio=rate(ours) / rate(others),
    )


def cpu_grid(found: Turns) -> Grid:
    """Processor time a record."""
    rows: list[list[str | float]] = [
        [f"{load}, {side}", rate(rounds), *[cpu_us(rounds, process) for process in PROCESSES]]
        for load, sides in found.items()
        for side, rounds in sides.items()
    ]
    return Grid("processor µs a record", ("load", "req/s", *PROCESSES), rows)
