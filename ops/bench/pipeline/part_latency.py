"""200 requests a second, Poisson, one text each, through real Kafka: every latency, from the scheduled moment."""

import dataclasses
import math

from penstock.ops.bench.common.claims import Claim, Criterion, Grid, PartResult
from penstock.ops.bench.common.processes import Service
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.pipeline.kafka_load import SERVED_NAME, faststream_service, minilm_worker, offer_load
from penstock.ops.bench.pipeline.load_spec import LoadResult
from penstock.ops.bench.pipeline.part_engine import bfloat16_is_native
from penstock.ops.kafka import KafkaBroker

_RATE_PER_S = 200.0
_DURATION_S = 30
_WARM_UP = 200
_LIMITS_MS = {"p50": (20.0, 8.0), "p99": (100.0, 40.0)}  # must, aim


def run_latency(setup: Setup) -> PartResult:
    """Part `latency`: ours in float32 and (the default where it is native) bfloat16, and the alternative in float32."""
    dtypes = ["float32", "bfloat16"] if bfloat16_is_native(setup) else ["float32"]
    with KafkaBroker() as broker:
        with faststream_service(setup, broker, "float32") as baseline:
            theirs = _offer(setup, broker, baseline, "plain")
        ours = {}
        for dtype in dtypes:
            with minilm_worker(setup, broker, dtype) as worker:
                ours[dtype] = _offer(setup, broker, worker, "penstock")
    loads = {**{f"penstock {dtype}": load for dtype, load in ours.items()}, "FastStream float32": theirs}
    grid = Grid(
        f"latency, ms, {theirs.num_requests:,} requests each",
        ("pipeline", "p50", "p95", "p99", "max", "never answered"),
        [
            (name, *[_ms(load, which) for which in ("p50", "p95", "p99", "max")], sum(load.failures.values()))
            for name, load in loads.items()
        ],
    )
    claims = [_claim(dtype, which, load, theirs) for dtype, load in ours.items() for which in _LIMITS_MS]
    return PartResult(claims, [grid], {name: dataclasses.asdict(load) for name, load in loads.items()})


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


def _claim(dtype: str, which: str, ours: LoadResult, theirs: LoadResult) -> Claim:
    must, aim = _LIMITS_MS[which]
    return Claim(
        work=f"{_RATE_PER_S:.0f} req/s Poisson through Kafka, {dtype}, {which}",
        ours=f"{_ms(ours, which):.1f} ms",
        baseline=f"FastStream + sentence-transformers float32 {_ms(theirs, which):.1f} ms",
        ratio=_ms(theirs, which) / _ms(ours, which),
        floor="",
        floor_share=None,
        criterion=Criterion("ms", _ms(ours, which), must, aim, higher_is_better=False),
    )


def _ms(load: LoadResult, which: str) -> float:
    value = load.latency_ms[which]
    return math.inf if value is None else value
