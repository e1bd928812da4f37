"""The default through Kafka: a worker process behind a real broker, and a client that sends at given rates."""

import tempfile
from pathlib import Path

from penstock.ops.bench.kafka_load import SERVED_NAME, minilm_worker, offer_load
from penstock.ops.bench.serving.part_saturation import Row, Say
from penstock.ops.bench.serving.plan import RunPlan
from penstock.ops.bench.serving.stand import Stand
from penstock.ops.bench.setup import Setup
from penstock.ops.demo.model import model_directory
from penstock.ops.kafka import KafkaBroker

_SECONDS = 10.0
_WARM_UP = 200


def run(stand: Stand, plan: RunPlan, say: Say) -> Row:
    """Banking77 messages as text, one a call; the worker has no setting but its model's type."""
    setup = Setup(model_directory(), Path(tempfile.mkdtemp(prefix="penstock-bench-")), stand.num_lanes, 1.0)
    rows = []
    with KafkaBroker() as broker, minilm_worker(setup, broker, stand.packed.info.dtype) as worker:
        for rate in plan.kafka_rates:
            load = offer_load(
                setup,
                broker,
                watch={"worker": worker.pid},
                target="penstock",
                model=SERVED_NAME,
                payload="text",
                arrivals="poisson",
                num_requests=max(100, round(rate * _SECONDS)),
                warm_up=_WARM_UP,
                rate_per_s=rate,
            )
            failed = sum(load.failures.values())
            rows.append(
                {
                    "rate_per_s": rate,
                    "answered_per_s": load.requests_per_s,
                    "latency_ms": dict(load.latency_ms),
                    "never_answered": failed,
                    "failures": dict(load.failures),
                }
            )
            say(f"  through Kafka at {rate:,.0f} req/s")
    return {"rows": rows}
