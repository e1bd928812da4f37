"""Throughput of exactly_once beside at_least_once, at 16 partitions, with clients that read as each mode asks for."""

from collections.abc import Sequence
from pathlib import Path

from penstock.ops.bench.common.comparison import PartResult
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.delivery.turns import compare, cpu_grid, in_turns, make_bench, open_side
from penstock.ops.bench.pipeline.fleet_bench import BROKER_CONFIG
from penstock.ops.bench.pipeline.loads import ROWS, SHORT, Load
from penstock.ops.bench.pipeline.pipeline_plan import NULL, NULL_WORKER
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec
from penstock.ops.kafka import FULL_SPEED, KafkaBroker
from penstock.producer.keywords import IsolationLevel

PARTITIONS = 16
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"
_ISOLATION: dict[str, IsolationLevel] = {AT_LEAST_ONCE: "read_uncommitted", EXACTLY_ONCE: "read_committed"}
# Enough in flight that the latency of a transaction does not bound the rate.
_NULL_SINGLES, _NULL_LISTS, _MODEL_SINGLES = 4096, 96, 256
_WARM_S, _NULL_S, _MODEL_S = 0.7, 2.0, 4.0


def run_null(setup: Setup) -> PartResult:
    """Part `modes`: without a model, so that all of the cost is Kafka's and the pipeline's."""
    low, high = SHORT
    seconds = _NULL_S * setup.scale
    loads = [
        Load("a record each", "ids", low, high, 1, _NULL_SINGLES, batch_calls=False, warm_s=_WARM_S, seconds=seconds),
        Load("64 a record", "ids", low, high, ROWS, _NULL_LISTS, warm_s=_WARM_S, seconds=seconds),
    ]
    return _run(setup, "modes", None, NULL_WORKER, loads)


def run_minilm(setup: Setup) -> PartResult:
    """Part `modes-minilm`."""
    low, high = SHORT
    seconds = _MODEL_S * setup.scale
    load = Load(
        "a record each", "ids", low, high, 1, _MODEL_SINGLES, batch_calls=False, warm_s=_WARM_S, seconds=seconds
    )
    return _run(setup, "modes-minilm", setup.model, ("--device", "cpu"), [load])


def _run(setup: Setup, part: str, model: Path | None, options: Sequence[str], loads: Sequence[Load]) -> PartResult:
    bench = make_bench(setup, part, loads[0].seconds)
    arguments = (*options, "--partitions", str(PARTITIONS))
    name = NULL if model is None else str(model)
    specs = {mode: FleetSpec(name, (*arguments, "--delivery", mode), members=1) for mode in _ISOLATION}
    with (
        KafkaBroker(num_partitions=PARTITIONS, config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker,
        open_side(bench, broker, AT_LEAST_ONCE, specs[AT_LEAST_ONCE], model, _ISOLATION[AT_LEAST_ONCE]) as at_least,
        open_side(bench, broker, EXACTLY_ONCE, specs[EXACTLY_ONCE], model, _ISOLATION[EXACTLY_ONCE]) as exactly,
    ):
        found = in_turns({AT_LEAST_ONCE: at_least, EXACTLY_ONCE: exactly}, loads)
    what = "null engine" if model is None else model.name
    comparisons = [
        compare(f"exactly_once, {what}, {load}", sides[EXACTLY_ONCE], AT_LEAST_ONCE, sides[AT_LEAST_ONCE])
        for load, sides in found.items()
    ]
    return PartResult(comparisons, [cpu_grid(found)], {"partitions": PARTITIONS, "loads": found})
