"""One request in a hundred raises in the engine: how many of the others are answered, ours and FastStream's."""

import dataclasses
from typing import Any

from penstock.ops.bench.common.comparison import Comparison, PartResult
from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.delivery.call_load import CallResult, CallSpec
from penstock.ops.bench.delivery.delivery_tables import FASTSTREAM, PENSTOCK
from penstock.ops.bench.delivery.faststream_member import ACK, SUBSCRIBER
from penstock.ops.bench.delivery.stand_in_worker import PROGRAM
from penstock.ops.bench.delivery.transcript import PLAIN_TOPICS, counts, read_transcript
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec, WorkerFleet
from penstock.ops.kafka import KafkaBroker

POISON_EVERY = 100
_NUM_REQUESTS, _WARM_UP, _CALLERS = 1000, 128, 256
_DTYPE = "float32"
_TIMEOUT_S = 10.0  # five times what the slower side takes for all that is in flight
_READY_S = 90.0


def run_poison(setup: Setup) -> PartResult:
    """Part `poison`."""
    model = str(setup.model)
    fleet = FleetSpec(model, ("--dtype", _DTYPE, "--device", "cpu"), members=1, program=PROGRAM)
    with KafkaBroker() as broker:
        servers = broker.bootstrap_servers
        with WorkerFleet(fleet, "bench", servers, setup.logs / "poison") as workers:
            workers.wait_until_ready(_READY_S)
            ours = _offer(setup, servers, "penstock")
        spec = {"bootstrap_servers": servers, "model": model, "dtype": _DTYPE, "cores": setup.cores, "ack_policy": ACK}
        with Service("delivery.faststream_member", spec, setup.logs / "poison-faststream.log"):
            theirs = with_late_answers(_offer(setup, servers, "plain"), servers)
    comparison = Comparison(
        work=f"all-MiniLM-L6-v2, one request in {POISON_EVERY} raises: good requests that are not answered",
        ours=_shown(ours),
        baseline=f"FastStream {_shown(theirs)}",
        ratio=None,
    )
    details = {
        PENSTOCK: dataclasses.asdict(ours),
        FASTSTREAM: dataclasses.asdict(theirs),
        "settings": {"FastStream": {"ack_policy": ACK, "max_records": 64, **SUBSCRIBER}, "callers": _CALLERS},
    }
    return PartResult([comparison], (), details)


def with_late_answers(result: CallResult, servers: str) -> CallResult:
    """The FastStream service's result; replies that came after their caller had given up count as answers."""
    found = counts(read_transcript(servers, PLAIN_TOPICS, result.started))
    return dataclasses.replace(result, good_unanswered=found["unanswered"] - result.poison + result.poison_answered)


def unanswered_share(result: CallResult) -> float:
    """Of the good requests."""
    return result.good_unanswered / result.good


def _offer(setup: Setup, servers: str, target: str) -> CallResult:
    load: dict[str, Any] = {
        "target": target,
        "bootstrap_servers": servers,
        "model": "bench",
        "payload": "text",
        "arrivals": "closed",
        "num_requests": setup.count(_NUM_REQUESTS),
        "warm_up": _WARM_UP,
        "in_flight": _CALLERS,
        "timeout_s": _TIMEOUT_S,
    }
    spec = CallSpec(load, str(setup.logs / f"poison-{target}.started"), POISON_EVERY)
    return CallResult(**run_once("delivery.call_load", dataclasses.asdict(spec), setup.logs / "poison-load.log"))


def _shown(result: CallResult) -> str:
    return f"{result.good_unanswered:,} of {result.good:,} ({unanswered_share(result):.1%})"
