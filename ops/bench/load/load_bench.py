"""Loads that are offered to one contestant or, in turns, to several behind one broker."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import ProcessFailed, cores_used, read_cpu_s
from penstock.ops.bench.common.setup import ROUNDS
from penstock.ops.bench.load.call_times import CallTimes, figures
from penstock.ops.bench.load.client_fleet import ClientFleet
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import BrokerCluster, KafkaBroker

Record = dict[str, Any]
Turns = dict[str, dict[str, list[Record]]]  # load -> contestant -> its rounds

# More threads than a broker's default, so that it is not the limit; and its disk use stays bounded.
BROKER_CONFIG = {
    "num.network.threads": "8",
    "log.segment.bytes": str(128 << 20),
    "log.retention.bytes": str(256 << 20),
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}
PROCESSES = ("worker", "client", "broker")
_WORKER = ("member", "supervisor")


class LoadBench:
    """Offers loads to one contestant, and watches the processor time of all processes."""

    def __init__(
        self,
        brokers: KafkaBroker | BrokerCluster,
        processes: Callable[[], Mapping[str, int]],
        clients: ClientFleet,
    ) -> None:
        """`processes`: process ids of the contestant now, by their labels, which begin with member or supervisor."""
        self._brokers = brokers
        self._processes = processes
        self._clients = clients

    def offer(self, load: Load) -> Record:
        """One load: its figures, the cores that every process used, and its failures."""
        record, _ = self.watch(load)
        say(load_line(load, record))
        return record

    def watch(
        self, load: Load, at_s: float = 0.0, act: Callable[[], object] = lambda: None
    ) -> tuple[Record, CallTimes]:
        """As `offer`, with the calls, and without a line. `act` is called `at_s` seconds after the load's warm-up."""
        start = self._clients.begin(load)
        watched = self.watched()
        sleep_until(start + load.warm_s)
        before = read_cpu_s(watched)
        sleep_until(start + load.warm_s + at_s)
        act()
        sleep_until(start + load.span_s)
        cores = cores_used(before, read_cpu_s(watched), load.seconds)
        offered = self._clients.collect(load, start)
        record = {
            "load": dataclasses.asdict(load),
            "started": time.time() - (time.perf_counter() - start),
            **figures(load, offered.calls),
            "failures": offered.failures,
            "poison": offered.poison,
            "lag_p99_ms": offered.lag_p99_ms,
            "cores": cores,
        }
        return record, offered.calls

    def watched(self) -> dict[str, int]:
        """Process ids of brokers, contestant and clients, by label."""
        brokers = {f"broker {number}": node.pid for number, node in enumerate(self._brokers.nodes)}
        alive = {label: pid for label, pid in brokers.items() if pid is not None}
        if len(alive) < len(brokers):
            raise ProcessFailed("A broker ended.")
        return {**alive, **self._processes(), **self._clients.watched()}


@contextmanager
def open_clients(
    broker: KafkaBroker,
    folder: Path,
    name: str,
    processes: Callable[[], Mapping[str, int]],
    model: Path | None = None,
    **client: Any,
) -> Iterator[LoadBench]:
    """One client process for a contestant whose processes are there. `name`: the served one of a worker's.

    `client`: further fields of ClientSpec.
    """
    with ClientFleet(1, broker.bootstrap_servers, name, model, folder / f"{name}-clients", **client) as clients:
        yield LoadBench(broker, processes, clients)


def in_turns(sides: Mapping[str, LoadBench], loads: Sequence[Load], rounds: int = ROUNDS) -> Turns:
    """Every load `rounds` times on each side, the sides in reverse order in every second round. All are warm."""
    names = list(sides)
    for side in sides.values():
        side.offer(dataclasses.replace(loads[-1], name=f"warm-up, {loads[-1].name}", warm_s=0.0))
    found: Turns = {load.name: {name: [] for name in names} for load in loads}
    for number in range(rounds):
        for load in loads:
            for name in names if number % 2 == 0 else reversed(names):
                found[load.name][name].append(with_costs(load, sides[name].offer(load)))
    return found


def with_costs(load: Load, record: Record) -> Record:
    """The record of a closed load with its rate in records, and the processor µs a record of each kind of process."""
    records_per_s = record["requests_per_s"] / load.rows
    if not records_per_s:
        raise ProcessFailed(f"{load.name}: nothing was answered in the measured {load.seconds:g} s.")
    used = {kind: _cores(record["cores"], kind) for kind in PROCESSES}
    return {**record, "records_per_s": records_per_s, "cpu_us": {k: v / records_per_s * 1e6 for k, v in used.items()}}


def rate(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Median requests a second."""
    return statistics.median([float(record["requests_per_s"]) for record in rounds])


def load_line(load: Load, record: Mapping[str, Any]) -> str:
    """A measured load as one line: rate, latencies, failures and cores."""
    answered = f"{record['requests_per_s']:,.0f} req/s, p50 {record['p50_ms']:.1f} p99 {record['p99_ms']:.1f} ms"
    failures = f", not answered {record['failures']}" if record["failures"] else ""
    return f"{load.name}: {answered}{failures}; {busiest_cores(record['cores'])}"


def busiest_cores(cores: Mapping[str, float]) -> str:
    """Cores of the brokers, of each member and supervisor, and of the busiest client."""
    kinds = {kind: [used for label, used in cores.items() if label.startswith(kind)] for kind in ("broker", *_WORKER)}
    kinds["client"] = sorted([used for label, used in cores.items() if label.startswith("client")])[-1:]
    shown = [f"{kind} {' '.join(f'{used:.2f}' for used in every)}" for kind, every in kinds.items() if every]
    return f"cores: {', '.join(shown)}"


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def sleep_until(moment: float) -> None:
    """`moment` is of perf_counter."""
    time.sleep(max(0.0, moment - time.perf_counter()))


def _cores(cores: Mapping[str, float], kind: str) -> float:
    labels = _WORKER if kind == "worker" else (kind,)
    return sum(used for label, used in cores.items() if label.startswith(labels))
