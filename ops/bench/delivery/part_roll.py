"""A rolling restart under an open loop: what is lost, and the latency of every request that was due meanwhile."""

import math
import signal
from typing import Any

from penstock.ops.bench.common.processes import unix_time
from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.bench.load.call_times import CallTimes, timeline
from penstock.ops.bench.load.load_bench import BROKER_CONFIG, open_clients
from penstock.ops.bench.load.loads import SHORT, Load
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

_MEMBERS = 2
_RATE_PER_S = 40.0  # a third of what the members compute
_BEFORE_S = 4.0  # of the load before the roll
_SECONDS = 45.0
_SETTLED_S = 2.0  # after the roll: the last old member's partitions have moved
_TIMEOUT_S = 30.0  # of a call
_READY_S = 90.0


def run_roll(setup: Setup) -> Details:
    """Part `roll`."""
    spec = FleetSpec(str(setup.model), ("--processes", str(_MEMBERS), "--device", "cpu"))
    load = Load("roll", "ids", *SHORT, rate_per_s=_RATE_PER_S, timeout_s=_TIMEOUT_S, warm_s=_BEFORE_S, seconds=_SECONDS)
    with (
        KafkaBroker(num_partitions=8, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker,
        WorkerFleet(spec, "bench", broker.bootstrap_servers, setup.logs / "roll") as fleet,
        open_clients(broker, setup.logs, "bench", fleet.watched, setup.model) as bench,
    ):
        fleet.wait_until_ready(_READY_S)
        record, calls = bench.watch(load, act=lambda: fleet.send_signal(signal.SIGHUP))
        finished = [unix_time(event) for event in fleet.events("roll_finished")]
    roll_s = finished[0] - record["started"] - _BEFORE_S if finished else math.inf  # infinite: longer than the load
    end_s = _BEFORE_S + min(roll_s + _SETTLED_S, _SECONDS)
    found = {"roll_s": roll_s, "lag_p99_ms": record["lag_p99_ms"], "failures": record["failures"]}
    return found | figures(calls, _BEFORE_S, end_s)


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
