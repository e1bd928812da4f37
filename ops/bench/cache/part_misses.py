"""Requests of which none is in the cache: what the look-up and the write cost beside a worker without a cache."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.ops.bench.cache.cache_tables import CACHES, ENGINES
from penstock.ops.bench.common.part_suite import Details
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.contestants.worker_fleet import FleetSpec, open_workers
from penstock.ops.bench.cpu.part_null import NULL_WORKER
from penstock.ops.bench.load.load_bench import Record, with_costs
from penstock.ops.bench.load.loads import Load
from penstock.ops.kafka import KafkaBroker

_IN_FLIGHT = {"MiniLM": 512, "null": 5000}
_SECONDS = {"MiniLM": 4.0, "null": 1.5}
_DISTINCT = {"MiniLM": 20_000, "null": 300_000}  # more than a load answers
_NUM_IDS = 15
_WARM_S = 1.0
_TURNS = ROUNDS + ROUNDS % 2  # even: each side goes first as often as the other


def run_misses(setup: Setup) -> Details:
    """Part `misses`: MiniLM and the null engine through Kafka, each in turn with and without a cache."""
    return {engine: _through_kafka(setup, engine) for engine in ENGINES}


def _through_kafka(setup: Setup, engine: str) -> Mapping[str, Sequence[Record]]:
    """Random ids that no other load has, so that none is in the cache. The worker that is not measured is idle."""
    model: Path | None = setup.model if engine == "MiniLM" else None
    arguments = ("--device", "cpu") if engine == "MiniLM" else NULL_WORKER
    load = Load("no hits", "ids", _NUM_IDS, _NUM_IDS, callers=_IN_FLIGHT[engine], distinct=_DISTINCT[engine])
    load = dataclasses.replace(load, warm_s=_WARM_S, seconds=setup.seconds(_SECONDS[engine]))
    found: dict[str, list[Record]] = {cache: [] for cache in CACHES}
    seeds = itertools.count()
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        sides = []
        for number in range(len(CACHES)):
            name = f"{engine.lower()}-{number}"
            options = ("--cache-path", str(setup.logs / f"{name}.db")) if number else ()
            spec = FleetSpec("null" if model is None else str(model), (*arguments, *options), members=1)
            sides.append(stack.enter_context(open_workers(broker, setup.logs, name, spec, model)))
        for turn in range(_TURNS + 1):  # the first warms up
            for cache, side in list(zip(CACHES, sides, strict=True))[:: 1 if turn % 2 else -1]:
                record = with_costs(load, side.offer(dataclasses.replace(load, seed=next(seeds))))
                found[cache] += [record] if turn else []
    return found
