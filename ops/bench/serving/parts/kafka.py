"""Through Kafka, with broker, worker process and client: critical points, beside those in process, and fixed loads."""

import dataclasses
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.serving.harness import BenchHarness
from penstock.ops.bench.serving.loads.systems import DEFAULT, DP, NO_BATCH, TEI, System
from penstock.ops.bench.serving.parts.critical import critical_point
from penstock.ops.bench.serving.parts.kafka_client import ClientSpec
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.bench.serving.run_plan import RunPlan
from penstock.ops.kafka import KafkaBroker, MockBroker, kafka_missing

COMPARED = (NO_BATCH, TEI, DP, DEFAULT)
LOADS = (0.7, 0.9, 1.2)  # of saturation
SATURATED = TEI  # the system whose saturation that is: it refuses none
_PATIENCE_S = 30.0  # deadline of a call where the system has no objective: longer than the backlog of an overloaded run
_NUM_LENGTHS = 4096  # requests whose lengths a client is given
_MOST_SEARCH_S = 600.0
_FIRST_SHARE = 0.7  # where a search begins, as a share of its bound: the cost, or the rate in process
_OVERLOAD = 1.4  # times what can be answered, by the cost alone
_TIMES = 5.0  # the usual length of a run, at a given rate: in one of 4 s a single stall decides
_MOCK_FETCH_MAX_WAIT_MS = 5  # the mock answers a fetch only when this time is up


class KafkaRuns:
    """Runs of the first workload of a plan through one broker."""

    def __init__(self, bench: BenchHarness, plan: RunPlan, connection: Row, folder: Path) -> None:
        """`connection`: settings that the worker and the client share. `folder`: for logs and cost tables."""
        self._bench = bench
        self._plan = plan
        self._connection = connection
        self._folder = folder
        self.lengths = plan.lengths[0]
        self.slo_s = plan.slo_of(bench, self.lengths)

    def points(self, say: Say) -> Row:
        """Critical points of each system in process and then through Kafka, on the same requests."""
        rows: list[Row] = []
        for system in self._systems():
            in_process = self._in_process(system)
            through = self._through_kafka(system, in_process["rate_per_s"])
            rows.append({"system": system.name, "in_process": in_process, "through_kafka": through})
            rates = [one["rate_per_s"] for one in (in_process, through)]
            say(f"  {system.name}: {rates[0]:,.0f} req/s in process, {rates[1]:,.0f} through Kafka")
        return {"rows": rows}

    def loads(self, say: Say) -> Row:
        """The answers in time of each system at `LOADS` of saturation."""
        rule = self._bench.system(SATURATED, self.slo_s)
        bound = self._bench.capacity_per_s(rule, self.lengths)
        (overload,) = self._through_kafka(rule, bound, [_OVERLOAD * bound])["runs"]
        saturation = float(overload["answered_per_s"])
        say(f"  saturation {saturation:,.0f} req/s through Kafka")
        rows = []
        for system in self._systems():
            runs = self._through_kafka(system, bound, [load * saturation for load in LOADS])["runs"]
            for load, figures in zip(LOADS, runs, strict=True):
                rows.append({"load": load, "slo_s": self.slo_s, "system": system.name, **figures})
                say(f"  {system.name} at {load:g}: {figures['goodput_per_s']:,.0f} in time/s")
        return {"saturation_per_s": saturation, "rows": rows}

    def _systems(self) -> list[System]:
        return [self._bench.system(name, self.slo_s) for name in COMPARED]

    def _in_process(self, system: System) -> Row:
        bench, plan, lengths, slo_s = self._bench, self._plan, self.lengths, self.slo_s
        return critical_point(
            lambda rate, times: bench.real(system, plan.load(lengths, rate, slo_s, times=times), grace_s=2 * slo_s),
            _FIRST_SHARE * bench.capacity_per_s(system, lengths),
            slo_s,
        )

    def _through_kafka(self, system: System, bound_per_s: float, rates: Sequence[float] = ()) -> Row:
        """A new worker with a new topic and group, so that no state of the previous system remains."""
        name, slo_s = f"bench-{uuid.uuid4().hex[:8]}", self.slo_s
        load = self._plan.load(self.lengths, bound_per_s, slo_s, times=_TIMES if rates else 1.0)
        spec = ClientSpec(
            connection={**self._connection, "model": name},
            lengths=self._bench.lengths(self.lengths, _NUM_LENGTHS).tolist(),
            vocab_size=self._bench.packed.info.vocab_size,
            slo_s=slo_s,
            timeout_s=system.settings.slo_s or _PATIENCE_S,
            guess_per_s=_FIRST_SHARE * bound_per_s,
            seconds=load.seconds,
            rates_per_s=list(rates),
        )
        settings = {**self._connection, **worker_settings(self._bench, system), "served_name": name}
        settings["cost_path"] = str(self._folder / "costs.sqlite")
        worker = {"settings": settings, "profile": None}
        log = self._folder / "client.log"
        with Service("cpu.worker_process", worker, self._folder / f"{name}.jsonl"):
            return run_once("serving.parts.kafka_client", dataclasses.asdict(spec), log, timeout_s=_MOST_SEARCH_S)


@contextmanager
def through_kafka(bench: BenchHarness, plan: RunPlan, say: Say) -> Iterator[tuple[str, KafkaRuns]]:
    """Runs through the named broker; else through a local Kafka if Java is installed, else librdkafka's mock."""
    with _broker(plan.bootstrap_servers) as (kind, connection), tempfile.TemporaryDirectory() as folder:
        runs = KafkaRuns(bench, plan, connection, Path(folder))
        say(f"through Kafka ({kind}), {runs.lengths} tokens, SLO {runs.slo_s * 1e3:.0f} ms")
        yield kind, runs


@contextmanager
def _broker(bootstrap_servers: str | None) -> Iterator[tuple[str, Row]]:
    if bootstrap_servers is not None:
        yield f"the broker at {bootstrap_servers}", {"bootstrap_servers": bootstrap_servers}
    elif kafka_missing() is None:
        with KafkaBroker() as broker:
            yield "a Kafka broker of one node", {"bootstrap_servers": broker.bootstrap_servers}
    else:
        with MockBroker() as mock:
            waits = {"fetch_max_wait_ms": _MOCK_FETCH_MAX_WAIT_MS}
            yield "librdkafka's mock broker", {"bootstrap_servers": mock.bootstrap_servers, **waits}


def worker_settings(bench: BenchHarness, system: System) -> dict[str, Any]:
    """Worker settings of the system. Its objective is the deadline of each request."""
    chosen, scheduler = bench.settings, system.settings
    shared = ("trigger", "partition", "order", "admission", "max_batch_sequences", "max_batch_tokens")
    return {
        **{name: getattr(chosen, name) for name in ("model", "device", "dtype")},
        **{name: getattr(scheduler, name) for name in shared},
        "lanes": scheduler.num_lanes,
        "max_wait_ms": scheduler.max_wait_s * 1e3,
        "log_format": "json",
    }
