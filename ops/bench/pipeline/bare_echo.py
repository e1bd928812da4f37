"""The bare aiokafka echo of the CPU benchmarks, behind the same broker as the fleets: one worker and one client."""

from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.pipeline.broker_folder import broker_folder
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.run_clock import RunClock
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

_IN_FLIGHT, _WARM_UP = 5000, 6000


def echo_rates(folder: Path, num_requests: int, clock: RunClock) -> dict[str, Any]:
    """200-byte records, one by one ("send") and in batches ("batched"): requests a second, and processor time."""
    found = {}
    with KafkaBroker(temporary_in=broker_folder(), config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker:
        for kind in ("send", "batched"):
            common = {"bootstrap_servers": broker.bootstrap_servers, "topic": f"echo.{kind}"}
            log = folder / f"echo-{kind}.log"
            with Service("cpu.echo", {**common, "role": "worker", "batched": kind == "batched"}, log) as worker:
                watch = {"worker": worker.pid, "broker": broker.pid}
                load = {"num_requests": num_requests, "warm_up": _WARM_UP, "in_flight": _IN_FLIGHT, "watch": watch}
                found[kind] = run_once("cpu.echo", {**common, **load, "role": "client"}, log, clock.left_s)
            clock.say(f"bare aiokafka echo, {kind}: {found[kind]['requests_per_s']:,.0f}/s")
    return found
