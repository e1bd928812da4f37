"""From texts to vectors through a real Kafka at saturation, in turn with the engine alone and with FastStream."""

import dataclasses
import statistics
from collections.abc import Sequence

from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.setup import ROUNDS, Setup, shuffled_texts
from penstock.ops.bench.cpu.engine_alone import EngineAlone
from penstock.ops.bench.cpu.kafka_load import SERVED_NAME, faststream_service, minilm_worker, offer_load
from penstock.ops.bench.cpu.load_spec import LoadResult
from penstock.ops.bench.cpu.part_engine import bfloat16_is_native
from penstock.ops.kafka import KafkaBroker

# Some 1.5 seconds each on two cores; --scale lengthens them.
_NUM_TEXTS = {"float32": 640, "bfloat16": 1280}
_NUM_TEXTS_BASELINE = {"float32": 192, "bfloat16": 320}
_WARM_UP = 128
_BULK_CALLERS = 4
_SINGLE_CALLERS = 256
_BASELINE_CALLERS = 256


def run_end_to_end(setup: Setup) -> PartResult:
    """Part `end-to-end`, in float32 and, where the processor has it, in bfloat16."""
    dtypes = ["float32", "bfloat16"] if bfloat16_is_native(setup) else ["float32"]
    results = [_run(setup, dtype) for dtype in dtypes]
    return PartResult(
        comparisons=[row for result in results for row in result.comparisons],
        grids=[grid for result in results for grid in result.grids],
        details=dict(zip(dtypes, [result.details for result in results], strict=True)),
    )


def _run(setup: Setup, dtype: str) -> PartResult:
    texts = shuffled_texts(setup.count(_NUM_TEXTS[dtype]))
    alone = EngineAlone(setup.model, dtype)
    alone.embed(texts[:_WARM_UP])
    alone_rates: list[float] = []
    loads: dict[str, list[LoadResult]] = {"bulk": [], "single": [], "baseline": []}
    with (
        KafkaBroker() as broker,
        minilm_worker(setup, broker, dtype) as worker,
        faststream_service(setup, broker, dtype) as baseline,
    ):
        for _ in range(ROUNDS):
            for name, arrivals, callers in (
                ("bulk", "bulk", _BULK_CALLERS),
                ("single", "closed", _SINGLE_CALLERS),
                ("baseline", "closed", _BASELINE_CALLERS),
            ):
                count = _NUM_TEXTS_BASELINE[dtype] if name == "baseline" else _NUM_TEXTS[dtype]
                load = offer_load(
                    setup,
                    broker,
                    watch={"worker": (baseline if name == "baseline" else worker).pid},
                    target="plain" if name == "baseline" else "penstock",
                    model=SERVED_NAME,
                    payload="text",
                    arrivals=arrivals,
                    num_requests=setup.count(count),
                    warm_up=_WARM_UP,
                    in_flight=callers,
                )
                loads[name].append(load)
            alone_rates.append(len(texts) / alone.embed(texts)[1])
    alone.close()
    return _result(dtype, alone_rates, loads)


def _result(dtype: str, alone_rates: Sequence[float], loads: dict[str, list[LoadResult]]) -> PartResult:
    alone = statistics.median(alone_rates)
    rates = {name: statistics.median(load.requests_per_s for load in results) for name, results in loads.items()}
    names = {
        "bulk": f"lists of texts, {_BULK_CALLERS} callers",
        "single": f"one text a call, {_SINGLE_CALLERS} in flight, records shared",
    }
    comparisons = [
        Comparison(
            work=f"end to end through Kafka, {dtype}, {description}",
            ours=f"{rates[name]:,.0f} req/s",
            baseline=f"FastStream + sentence-transformers {dtype} {rates['baseline']:,.0f} req/s",
            ratio=rates[name] / rates["baseline"],
            floor=f"engine alone {alone:,.0f} req/s",
            floor_share=rates[name] / alone,
        )
        for name, description in names.items()
    ]
    grid = Grid(
        f"{dtype}: processor µs a text",
        ("pipeline", "client", "worker", "broker"),
        [
            (
                "FastStream" if name == "baseline" else name,
                *[statistics.median(load.cpu_us(process) for load in results) for process in results[0].cpu_user_s],
            )
            for name, results in loads.items()
        ],
    )
    held = [sample / 2**20 for name in names for load in loads[name] for sample in load.rss_bytes["worker"]]
    memory = Grid(
        f"{dtype}: worker's memory over all loads, MiB",
        ("first", "lowest", "highest", "last"),
        [(f"{held[0]:.1f}", min(held), max(held), held[-1])],
    )
    details = {
        "engine_alone_requests_per_s": alone_rates,
        "requests_per_s": {name: [load.requests_per_s for load in results] for name, results in loads.items()},
        "loads": {name: [dataclasses.asdict(load) for load in results] for name, results in loads.items()},
    }
    return PartResult(comparisons, [grid, memory], details)
