"""Texts through a real Kafka, in turn with FastStream and the engine alone: at saturation, and at 20 and 200/s."""

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

from penstock.ops.bench.common.setup import ROUNDS, Details, Setup, shuffled_texts
from penstock.ops.bench.contestants.engine_alone import EngineAlone
from penstock.ops.bench.contestants.faststream import FastStreamMembers, open_faststream
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.cpu.part_engine import dtypes
from penstock.ops.bench.load.load_bench import LoadBench
from penstock.ops.bench.load.loads import ROWS, Load
from penstock.ops.kafka import KafkaBroker

_NUM_ALONE = {"float32": 640, "bfloat16": 1280}  # texts of a pass of the engine alone, some 1.5 s
_WARM_UP = 128
_LIST_CALLERS, _CALLERS = 8, 256
_WARM_S, _SECONDS = 1.0, 3.0
_LOT_SECONDS = 6.0  # where answers come in lots of 64: of lists, and of FastStream
_RATE_PER_S, _RATE_SECONDS = 200.0, 6.0
_LOW_RATE_PER_S, _LOW_RATE_SECONDS = 20.0, 20.0  # where no request waits for another
_TIMEOUT_S = 120.0  # of a call; later, the request is unanswered


def run_end_to_end(setup: Setup) -> Details:
    """Part `end-to-end`: lists of texts, and one text a call, each at saturation."""
    return {dtype: _saturated(setup, dtype) for dtype in dtypes(setup)}


def run_latency(setup: Setup) -> Details:
    """Part `latency`: Poisson, one text a call, latencies from when a request was due."""
    found: dict[str, Any] = {}
    with KafkaBroker() as broker:
        for dtype in dtypes(setup):
            with _faststream(setup, broker, dtype) as (theirs, _):
                found[f"FastStream {dtype}"] = _offered(setup, theirs, _RATE_PER_S, _RATE_SECONDS)
            with _workers(setup, broker, dtype) as ours:
                found[f"penstock {dtype}"] = _offered(setup, ours, _RATE_PER_S, _RATE_SECONDS)
                low = _offered(setup, ours, _LOW_RATE_PER_S, _LOW_RATE_SECONDS)
                found[f"penstock {dtype}, {_LOW_RATE_PER_S:g}/s"] = low
    return found


def _saturated(setup: Setup, dtype: str) -> Details:
    seconds, lot_seconds = setup.seconds(_SECONDS), setup.seconds(_LOT_SECONDS)
    closed = Load("one text a call", "banking77", callers=_CALLERS, timeout_s=_TIMEOUT_S, warm_s=_WARM_S)
    loads = {
        "bulk": dataclasses.replace(closed, name="lists", rows=ROWS, callers=_LIST_CALLERS, seconds=lot_seconds),
        "single": dataclasses.replace(closed, seconds=seconds),
        "baseline": dataclasses.replace(closed, seconds=lot_seconds),
    }
    texts = shuffled_texts(setup.count(_NUM_ALONE[dtype]))
    alone = EngineAlone(setup.model, dtype)
    alone.embed(texts[:_WARM_UP])
    alone_rates: list[float] = []
    found: dict[str, list[Any]] = {name: [] for name in loads}
    with (
        KafkaBroker() as broker,
        _workers(setup, broker, dtype) as ours,
        _faststream(setup, broker, dtype) as (theirs, _),
    ):
        for _ in range(ROUNDS):
            for name, load in loads.items():
                side = theirs if name == "baseline" else ours
                found[name].append(side.offer(load))
            alone_rates.append(len(texts) / alone.embed(texts)[1])
    alone.close()
    return {
        "engine_alone_requests_per_s": alone_rates,
        "requests_per_s": {name: [one["requests_per_s"] for one in rounds] for name, rounds in found.items()},
        "loads": found,
    }


def _offered(setup: Setup, side: LoadBench, rate_per_s: float, seconds: float) -> Details:
    """An open loop, after a closed one of a few callers that warms up."""
    warm = Load("warm-up", "banking77", callers=8, timeout_s=_TIMEOUT_S, warm_s=0.0, seconds=1.0)
    side.offer(warm)
    load = dataclasses.replace(warm, name=f"{rate_per_s:g}/s", callers=0, rate_per_s=rate_per_s)
    record = side.offer(dataclasses.replace(load, seconds=setup.seconds(seconds)))
    return {**record, "latency_ms": {which: record[f"{which}_ms"] for which in ("p50", "p99", "max")}}


def _workers(setup: Setup, broker: KafkaBroker, dtype: str) -> AbstractContextManager[LoadBench]:
    """A worker with the model and its dtype; all other settings are defaults."""
    spec = FleetSpec(str(setup.model), ("--device", "cpu", "--dtype", dtype), members=1)
    return open_workers(broker, setup.logs, f"minilm-{dtype}", spec, setup.model)


def _faststream(
    setup: Setup, broker: KafkaBroker, dtype: str
) -> AbstractContextManager[tuple[LoadBench, FastStreamMembers]]:
    model = {"directory": str(setup.model), "dtype": dtype, "cores": setup.cores}
    return open_faststream(broker, setup.logs, f"faststream-{dtype}", model=model)
