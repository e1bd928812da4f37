"""One request in a hundred raises in the engine: how many of the others are answered, ours and FastStream's."""

from typing import Any

from penstock.ops.bench.common.setup import Details, Setup
from penstock.ops.bench.contestants.faststream import ACK, MAX_RECORDS, SUBSCRIBER, open_faststream
from penstock.ops.bench.contestants.stand_in_worker import PROGRAM
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.delivery.delivery_tables import FASTSTREAM, PENSTOCK
from penstock.ops.bench.delivery.transcript import PLAIN_TOPICS, counts, read_transcript
from penstock.ops.bench.load.load_bench import LoadBench
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import KafkaBroker

POISON_EVERY = 100
_CALLERS = 256
_DTYPE = "float32"
_TIMEOUT_S = 10.0  # five times what the slower side takes for all that is in flight
_SECONDS = 12.0


def run_poison(setup: Setup) -> Details:
    """Part `poison`."""
    fleet = FleetSpec(str(setup.model), ("--dtype", _DTYPE, "--device", "cpu"), members=1, program=PROGRAM)
    model = {"directory": str(setup.model), "dtype": _DTYPE, "cores": setup.cores}
    with KafkaBroker() as broker:
        with open_workers(broker, setup.logs, "poison", fleet, setup.model) as ours:
            found = {PENSTOCK: _offer(setup, ours)}
        with open_faststream(broker, setup.logs, "poison-faststream", model=model) as (theirs, _):
            result = _offer(setup, theirs)
            transcript = read_transcript(broker.bootstrap_servers, PLAIN_TOPICS, result["started"])
            found[FASTSTREAM] = with_late_answers(result, counts(transcript))
    settings = {"FastStream": {"ack_policy": ACK, "max_records": MAX_RECORDS, **SUBSCRIBER}, "callers": _CALLERS}
    return {**found, "settings": settings}


def with_late_answers(result: dict[str, Any], found: dict[str, int]) -> dict[str, Any]:
    """A result of the FastStream service; replies that came after their caller had given up count as answers.

    `found`: counts of all records of the load, poison among them.
    """
    never = found["unanswered"] - result["poison"] + result["poison_answered"]
    return {**result, "good": found["requests"] - result["poison"], "good_unanswered": never}


def _offer(setup: Setup, side: LoadBench) -> dict[str, Any]:
    warm = Load("warm-up", "banking77", callers=_CALLERS, timeout_s=_TIMEOUT_S, warm_s=0.0, seconds=1.0)
    side.offer(warm)
    load = Load(
        f"one in {POISON_EVERY} raises",
        "banking77",
        callers=_CALLERS,
        poison_every=POISON_EVERY,
        timeout_s=_TIMEOUT_S,
        warm_s=0.0,
        seconds=setup.seconds(_SECONDS),
    )
    record, calls = side.watch(load)
    poison = record["poison"]
    return {
        "started": record["started"],
        "good": float(calls.answered.sum() + calls.failed.sum()),
        "good_unanswered": float(calls.failed.sum()),
        "poison": sum(poison.values()),
        "poison_answered": poison.get("answered", 0),
        "failures": record["failures"],
        "latency_ms": {which: calls.percentile_s(percent) * 1e3 for which, percent in (("p50", 50), ("p99", 99))},
    }
