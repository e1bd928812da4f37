"""A rolling restart under an open loop: what is lost, and the latency of every request that was due meanwhile."""

import math
import signal
import time
from datetime import datetime
from typing import Any

from penstock.ops.bench.common.comparison import Comparison, PartResult
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.pipeline.call_times import CallTimes, timeline
from penstock.ops.bench.pipeline.client_fleet import ClientFleet
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.loads import SHORT, Load
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

_MEMBERS = 2
_RATE_PER_S = 40.0  # a third of what the members compute
_BEFORE_S = 4.0  # of the load before the roll
_SECONDS = 45.0
_SETTLED_S = 2.0  # after the roll: the last old member's partitions have moved
_TIMEOUT_S = 30.0  # of a call
_READY_S = 90.0


def run_roll(setup: Setup) -> PartResult:
    """Part `roll`."""
    spec = FleetSpec(str(setup.model), ("--processes", str(_MEMBERS), "--device", "cpu"))
    folder = setup.logs / "roll"
    with (
        KafkaBroker(num_partitions=8, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker,
        WorkerFleet(spec, "bench", broker.bootstrap_servers, folder) as fleet,
        ClientFleet(1, broker.bootstrap_servers, "bench", setup.model, folder / "clients") as clients,
    ):
        fleet.wait_until_ready(_READY_S)
        found = _roll(fleet, clients)
    comparison = Comparison(
        work=f"all-MiniLM-L6-v2, {_MEMBERS} members, {_RATE_PER_S:.0f}/s of 2-100 tokens, SIGHUP: whole roll",
        ours=f"{found['lost']:.0f} of {found['requests']:,.0f} lost, p99 {found['p99_ms'] / 1e3:.2f} s "
        f"in {found['roll_s']:.1f} s",
        baseline=f"the same load before the roll, p99 {found['before_p99_ms'] / 1e3:.2f} s",
        ratio=None,
    )
    return PartResult([comparison], (), found)


def _roll(fleet: WorkerFleet, clients: ClientFleet) -> dict[str, Any]:
    low, high = SHORT
    load = Load(
        "roll",
        "ids",
        low,
        high,
        rate_per_s=_RATE_PER_S,
        timeout_s=_TIMEOUT_S,
        warm_s=_BEFORE_S,
        seconds=_SECONDS,
    )
    start = clients.begin(load)
    time.sleep(max(0.0, start + _BEFORE_S - time.perf_counter()))
    asked_at = time.time()
    fleet.send_signal(signal.SIGHUP)
    offered = clients.collect(load, start)
    finished = [_unix_time(event) for event in fleet.events("roll_finished")]
    roll_s = finished[0] - asked_at if finished else math.inf  # infinite: longer than the load
    end_s = _BEFORE_S + min(roll_s + _SETTLED_S, _SECONDS)
    found = figures(offered.calls, _BEFORE_S, end_s)
    return {"roll_s": roll_s, "lag_p99_ms": offered.lag_p99_ms, "failures": offered.failures, **found}


def figures(calls: CallTimes, start_s: float, end_s: float) -> dict[str, Any]:
    """Of the requests that were due from the signal until the roll had settled, and of those before it."""
    rolled = calls.begun_within(start_s, end_s)
    return {
        "requests": float(rolled.answered.sum() + rolled.failed.sum()),
        "lost": float(rolled.failed.sum()),
        "p50_ms": rolled.percentile_s(50) * 1e3,
        "p99_ms": rolled.percentile_s(99) * 1e3,
        "max_ms": rolled.percentile_s(100) * 1e3,
        "before_p99_ms": calls.begun_within(0.0, start_s).percentile_s(99) * 1e3,
        "lost_of_whole_load": float(calls.failed.sum()),
        "timeline": timeline(calls, start_s, end_s),
    }


def _unix_time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()
