"""20 and 200 requests a second through a real Kafka, Poisson, one text each: latencies from when a request was due."""

import dataclasses
import math
from collections.abc import Mapping

from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.processes import Service
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.cpu.kafka_load import SERVED_NAME, faststream_service, minilm_worker, offer_load
from penstock.ops.bench.cpu.load_spec import LoadResult
from penstock.ops.bench.cpu.part_engine import bfloat16_is_native
from penstock.ops.kafka import KafkaBroker

_RATE_PER_S = 200.0
_LOW_RATE_PER_S = 20.0  # where no request waits for another
_DURATION_S = 6
_LOW_DURATION_S = 20
_WARM_UP = 200
_FEW = 20  # requests, to connect


def run_latency(setup: Setup) -> PartResult:
    """Part `latency`: ours and the alternative, each in float32 and, where it is native, in bfloat16."""
    dtypes = ["float32", "bfloat16"] if bfloat16_is_native(setup) else ["float32"]
    loads: dict[str, LoadResult] = {}
    with KafkaBroker() as broker:
        for dtype in dtypes:
            with faststream_service(setup, broker, dtype) as baseline:
                loads[f"FastStream {dtype}"] = _offer(setup, broker, baseline, "plain")
            with minilm_worker(setup, broker, dtype) as worker:
                loads[f"penstock {dtype}"] = _offer(setup, broker, worker, "penstock")
                loads[f"penstock {dtype}, {_LOW_RATE_PER_S:.0f}/s"] = _offer_low(setup, broker, worker)
    grid = Grid(
        f"latency, ms, {_RATE_PER_S:.0f} requests/s, {_DURATION_S * setup.scale:g} s each",
        ("pipeline", "p50", "p95", "p99", "max", "never answered"),
        [
            (name, *[_ms(load, which) for which in ("p50", "p95", "p99", "max")], sum(load.failures.values()))
            for name, load in loads.items()
        ],
    )
    comparisons = [_compare(dtype, which, loads) for dtype in dtypes for which in ("p50", "p99")]
    return PartResult(comparisons, [grid], {name: dataclasses.asdict(load) for name, load in loads.items()})


def _offer(setup: Setup, broker: KafkaBroker, service: Service, target: str) -> LoadResult:
    return offer_load(
        setup,
        broker,
        watch={"worker": service.pid},
        target=target,
        model=SERVED_NAME,
        payload="text",
        arrivals="poisson",
        num_requests=setup.count(int(_RATE_PER_S * _DURATION_S)),
        warm_up=_WARM_UP,
        rate_per_s=_RATE_PER_S,
    )


def _offer_low(setup: Setup, broker: KafkaBroker, service: Service) -> LoadResult:
    """The low rate, to a worker that has answered before."""
    return offer_load(
        setup,
        broker,
        watch={"worker": service.pid},
        target="penstock",
        model=SERVED_NAME,
        payload="text",
        arrivals="poisson",
        num_requests=setup.count(int(_LOW_RATE_PER_S * _LOW_DURATION_S)),
        warm_up=_FEW,
        rate_per_s=_LOW_RATE_PER_S,
    )


def _compare(dtype: str, which: str, loads: Mapping[str, LoadResult]) -> Comparison:
    ours, theirs = (_ms(loads[f"{pipeline} {dtype}"], which) for pipeline in ("penstock", "FastStream"))
    return Comparison(
        work=f"{_RATE_PER_S:.0f} req/s Poisson through Kafka, {dtype}, {which}",
        ours=f"{ours:.1f} ms",
        baseline=f"FastStream + sentence-transformers {dtype} {theirs:.1f} ms",
        ratio=theirs / ours,
    )


def _ms(load: LoadResult, which: str) -> float:
    value = load.latency_ms[which]
    return math.inf if value is None else value
