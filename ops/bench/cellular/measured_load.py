"""Figures of one load: throughput, and latency split into queueing and computation, as in the paper's section 7."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.ops.bench.cellular.contestants import Contestant
from penstock.ops.bench.cellular.load import Clock, Driver, Floats, Offered
from penstock.ops.bench.cellular.tape import RecordedBatch, Tape
from penstock.ops.bench.cellular.workloads import Workload
from penstock.ops.bench.common.draws import poisson

Figures = dict[str, Any]

WARM_UP = 0.2  # of a load's seconds; requests of the warm-up are not counted
_PERCENTILES = (50, 90, 99)


def measure_peak(contestant: Contestant, in_flight: int, seconds: float, clock: Clock) -> Figures:
    """Throughput of a closed loop."""
    tape = Tape(clock.now)
    offered = Driver(contestant.make(tape), contestant.works, clock).saturate(in_flight, seconds)
    begin, end = offered.began + WARM_UP * seconds, offered.began + seconds
    return {
        "contestant": contestant.name,
        "settings": dict(contestant.settings),
        "in_flight": in_flight,
        "requests_per_s": throughput(offered, begin, end),
        **_tasks(tape.batches, begin, end),
    }


def measure_rate(
    contestant: Contestant, rate_per_s: float, seconds: float, clock: Clock, seed: int, num_firsts: Sequence[int]
) -> Figures:
    """Throughput and latencies of an open loop with Poisson arrivals. The same seed gives the same arrivals."""
    tape = Tape(clock.now)
    arrivals = poisson(rate_per_s, max(2, round(rate_per_s * seconds)), seed)
    arrivals *= seconds / arrivals[-1]  # a short load has the rate that it says, too
    offered = Driver(contestant.make(tape), contestant.works, clock).offer(arrivals)
    begins = tape.begins(len(arrivals), num_firsts)
    found = latencies(offered, begins, WARM_UP)
    begin, end = offered.began + WARM_UP * arrivals[-1], offered.arrivals[-1]
    tasks = _tasks(tape.batches, begin, end)
    if tasks["device_us"]:
        found["p99_queueing_quanta"] = found["queueing_ms"]["p99"] * 1e3 / tasks["device_us"]
    return {
        "contestant": contestant.name,
        "settings": dict(contestant.settings),
        "offered_per_s": rate_per_s,
        "requests": len(arrivals),
        **found,
        **tasks,
    }


def throughput(offered: Offered, begin: float, end: float) -> float:
    """Requests a second, from the first end after `begin` to the last one before `end`: requests may end in batches.

    Over the whole load where all that end in between end at once.
    """
    ends = offered.ends[(offered.ends >= begin) & (offered.ends < end)]
    if len(ends) and ends.max() > ends.min():
        return float((ends > ends.min()).sum() / (ends.max() - ends.min()))
    return float(len(offered.ends) / (offered.ended - offered.began))


def latencies(offered: Offered, begins: Floats, warm_up: float) -> Figures:
    """Throughput, and percentiles of the requests that were due after the warm-up, a share of the load's time.

    Queueing lasts from the time at which a request was due to the begin of its first task, computation from there to
    its end.
    """
    first, last = offered.arrivals[0], offered.arrivals[-1]
    counted = offered.arrivals >= first + warm_up * (last - first)
    since = offered.arrivals[counted][0]
    arrivals, begins, ends = offered.arrivals[counted], begins[counted], offered.ends[counted]
    return {
        "throughput_per_s": throughput(offered, since, last),
        "latency_ms": _percentiles(ends - arrivals),
        "queueing_ms": _percentiles(begins - arrivals),
        "computation_ms": _percentiles(ends - begins),
        "counted": int(counted.sum()),
    }


def num_firsts(workload: Workload) -> Sequence[int]:
    """First nodes of each request of the pool."""
    entry = next(index for index, spec in enumerate(workload.model.specs) if spec.name == workload.entry)
    return [int((work.graph.cells == entry).sum()) for work in workload.works]


def _percentiles(seconds: Floats) -> Mapping[str, float]:
    return {f"p{share}": float(1e3 * np.percentile(seconds, share)) for share in _PERCENTILES}


def _tasks(batches: Sequence[RecordedBatch], begin: float, end: float) -> Figures:
    """Means over the tasks that began within a time."""
    within = [batch for batch in batches if begin <= batch.begin < end]
    count = max(1, len(within))
    device_s = sum(batch.end - batch.begin for batch in within)
    rows = [len(batch.asked) for batch in within]
    num_steps = sum(int(batch.asked.sum()) for batch in within)
    room = sum(count * batch.quantum for count, batch in zip(rows, within, strict=True))
    return {
        "tasks": len(within),
        "rows": sum(rows) / count,
        "quantum": sum(batch.quantum for batch in within) / count,
        "fill": num_steps / max(1, room),
        "device_us": 1e6 * device_s / count,
        "interval_us": 1e6 * (end - begin) / count,  # between the begins of two tasks
        "device_busy": device_s / (end - begin),
    }
