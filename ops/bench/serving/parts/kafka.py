"""Through Kafka, with broker, worker process and client: critical points, beside those in process, and fixed loads.

The load is the load generator's open loop: a latency counts from the moment at which a request was due, so a stall of
anything is in every latency that it delays.
"""

import itertools
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ops.bench.common.processes import Service
from penstock.ops.bench.load.client_fleet import ClientFleet, Offered
from penstock.ops.bench.load.loads import Load
from penstock.ops.bench.serving.harness import BenchHarness
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.systems import DEFAULT, DP, NO_BATCH, TEI, System
from penstock.ops.bench.serving.parts.critical import critical_point
from penstock.ops.bench.serving.parts.saturation import Row, Say
from penstock.ops.bench.serving.run_plan import RunPlan
from penstock.ops.kafka import KafkaBroker
from penstock.worker.model_settings import NULL_MODEL

COMPARED = (NO_BATCH, TEI, DP, DEFAULT)
LOADS = (0.7, 0.9, 1.2)  # of saturation
SATURATED = TEI  # the system whose saturation that is: it refuses none
_PATIENCE_S = 30.0  # deadline of a call where the system has no objective: longer than the backlog of an overloaded run
_FEWEST_REQUESTS = 60
_WARM_UP_SHARE = 0.5  # of the first guess
_FIRST_SHARE = 0.7  # where a search begins, as a share of its bound: the cost, or the rate in process
_OVERLOAD = 1.4  # times what can be answered, by the cost alone
_TIMES = 5.0  # the usual length of a run, at a given rate: in one of 4 s a single stall decides
_CLIENT = "serving.parts.open_client:connect"

Run = Callable[[float, float], Outcome]  # (requests a second, times the usual length of a run)


class UnofferedLengths(Exception):
    """The load generator draws lengths from ranges alone. The message names the range that was expected."""


class KafkaRuns:
    """Runs of the first workload of a plan through one broker."""

    def __init__(self, bench: BenchHarness, plan: RunPlan, servers: str, folder: Path) -> None:
        """`servers`: of the broker. `folder`: for logs and cost tables. Raises UnofferedLengths."""
        self._bench = bench
        self._plan = plan
        self._servers = servers
        self._folder = folder
        self.lengths = plan.lengths[0]
        self.slo_s = plan.slo_of(bench, self.lengths)
        low, _, high = self.lengths.partition("-")
        if not (low.isdigit() and high.isdigit()):
            raise UnofferedLengths(f"Through Kafka, lengths are a range such as 2-100. Given: {self.lengths}")
        self._range = int(low), int(high)

    def points(self, say: Say) -> Row:
        """Critical points of each system in process and then through Kafka, on the same requests."""
        rows: list[Row] = []
        for system in self._systems():
            in_process = self._in_process(system)
            guess = _FIRST_SHARE * float(in_process["rate_per_s"])
            with self._serving(system, guess) as run:
                through = critical_point(run, guess, self.slo_s)
            rows.append({"system": system.name, "in_process": in_process, "through_kafka": through})
            rates = [one["rate_per_s"] for one in (in_process, through)]
            say(f"  {system.name}: {rates[0]:,.0f} req/s in process, {rates[1]:,.0f} through Kafka")
        return {"rows": rows}

    def loads(self, say: Say) -> Row:
        """The answers in time of each system at `LOADS` of saturation."""
        rule = self._bench.system(SATURATED, self.slo_s)
        bound = self._bench.capacity_per_s(rule, self.lengths)
        with self._serving(rule, _FIRST_SHARE * bound) as run:
            saturation = run(_OVERLOAD * bound, _TIMES).figures(self.slo_s)["answered_per_s"]
        say(f"  saturation {saturation:,.0f} req/s through Kafka")
        rows = []
        for system in self._systems():
            with self._serving(system, _FIRST_SHARE * saturation) as run:
                for load in LOADS:
                    figures = run(load * saturation, _TIMES).figures(self.slo_s)
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

    @contextmanager
    def _serving(self, system: System, guess_per_s: float) -> Iterator[Run]:
        """A warm worker with a new topic and group, so that no state of the previous system remains."""
        name, seeds = f"bench-{uuid.uuid4().hex[:8]}", itertools.count(1)
        settings = {"bootstrap_servers": self._servers, **worker_settings(self._bench, system), "served_name": name}
        settings["cost_path"] = str(self._folder / "costs.sqlite")
        model = None if self._bench.settings.model == NULL_MODEL else Path(self._bench.settings.model)
        worker = Service("cpu.worker_process", {"settings": settings}, self._folder / f"{name}.jsonl")
        with worker, ClientFleet(1, self._servers, name, model, self._folder / name, connect=_CLIENT) as clients:

            def run(rate_per_s: float, times: float) -> Outcome:
                usual = self._plan.load(self.lengths, rate_per_s, self.slo_s, times=times)
                seconds = max(usual.seconds, _FEWEST_REQUESTS / rate_per_s)
                load = Load(
                    f"{rate_per_s:,.0f}/s",
                    "ids",
                    *self._range,
                    rate_per_s=rate_per_s,
                    distinct=2 * usual.count,  # requests that are equal are computed once
                    seed=next(seeds),
                    timeout_s=system.settings.slo_s or _PATIENCE_S,
                    warm_s=0.0,
                    seconds=seconds,
                )
                return _outcome(clients.collect(load, clients.begin(load)))

            run(_WARM_UP_SHARE * guess_per_s, 1.0)
            yield run


def _outcome(offered: Offered) -> Outcome:
    calls = offered.calls
    order = np.argsort(calls.begun)
    finish = np.where(calls.failed > 0, np.nan, calls.finished)[order]
    return Outcome(calls.begun[order], np.full(len(order), np.nan), finish, offered.failures)


@contextmanager
def through_kafka(bench: BenchHarness, plan: RunPlan, say: Say) -> Iterator[tuple[str, KafkaRuns]]:
    """Runs through the named broker, or through one of their own. Raises BrokerMissing without Java."""
    named = plan.bootstrap_servers
    with KafkaBroker() if named is None else nullcontext() as own, tempfile.TemporaryDirectory() as folder:
        servers = named if own is None else own.bootstrap_servers
        runs = KafkaRuns(bench, plan, str(servers), Path(folder))
        broker = "a Kafka broker of one node" if named is None else f"the broker at {named}"
        say(f"through Kafka ({broker}), {runs.lengths} tokens, SLO {runs.slo_s * 1e3:.0f} ms")
        yield broker, runs


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
