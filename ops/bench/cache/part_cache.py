"""What an answer from the cache costs, and what a look-up that finds nothing and the write of the result cost."""

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock.ops.bench.cache.cache_tables import CACHES, ENGINES
from penstock.ops.bench.common.part_suite import Details
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.contestants.worker_fleet import READY_TIMEOUT_S, FleetSpec, WorkerFleet, open_workers
from penstock.ops.bench.cpu.part_null import NULL_WORKER
from penstock.ops.bench.load.load_bench import LoadBench, open_clients, with_costs
from penstock.ops.bench.load.loads import ROWS, Load
from penstock.ops.kafka import KafkaBroker

_IN_FLIGHT = {"MiniLM": 512, "null": 5000}
_SECONDS = {"MiniLM": 4.0, "null": 1.5}
_DISTINCT = {"MiniLM": 20_000, "null": 300_000}  # more than a load answers
_NUM_IDS, _WARM_S = 15, 1.0  # Banking77's mean
_TURNS = ROUNDS + ROUNDS % 2  # even: each side goes first as often as the other
_HITS = (
    Load("a record each", "ids", _NUM_IDS, _NUM_IDS, callers=5000, batch_calls=False, distinct=8192, warm_s=_WARM_S),
    Load("64 a record", "ids", _NUM_IDS, _NUM_IDS, ROWS, callers=64, distinct=8192, warm_s=_WARM_S),
)


def run_hits(setup: Setup) -> Details:
    """Part `hits`: a member with a cache that has every sequence of the load, beside its own client and broker."""
    found: dict[str, list[Any]] = {load.name: [] for load in _HITS}
    spec = FleetSpec("null", (*NULL_WORKER, "--cache-path", str(setup.logs / "hits.db")), members=1)
    with KafkaBroker() as broker, WorkerFleet(spec, "hits", broker.bootstrap_servers, setup.logs / "hits") as fleet:
        fleet.wait_until_ready(READY_TIMEOUT_S)
        with open_clients(broker, setup.logs, "hits", fleet.watched) as side:
            for load in _HITS * (ROUNDS + 1):  # the first round fills the cache
                load = dataclasses.replace(load, seconds=setup.seconds(_SECONDS["null"]))
                found[load.name].append(with_costs(load, side.offer(load)))
    counted = list(fleet.events("worker_load"))  # the last one comes at the end
    cached, computed = (sum(event[name] for event in counted) for name in ("cached", "sequences"))
    return {"loads": {name: rounds[1:] for name, rounds in found.items()}, "share": cached / (cached + computed)}


def run_misses(setup: Setup) -> Details:
    """Part `misses`: MiniLM and the null engine through Kafka, each in turn with and without a cache."""
    return {engine: _misses(setup, engine) for engine in ENGINES}


def _misses(setup: Setup, engine: str) -> Details:
    """Random ids that no other load has, so that none is in the cache. The worker that is not measured is idle."""
    load = Load("no hits", "ids", _NUM_IDS, _NUM_IDS, callers=_IN_FLIGHT[engine], distinct=_DISTINCT[engine])
    load = dataclasses.replace(load, warm_s=_WARM_S, seconds=setup.seconds(_SECONDS[engine]))
    found: dict[str, list[Any]] = {cache: [] for cache in CACHES}
    seeds = itertools.count()
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        sides = [stack.enter_context(_workers(setup, broker, engine, has_cache=cache == CACHES[1])) for cache in CACHES]
        for turn in range(_TURNS + 1):  # the first warms up
            for cache, side in list(zip(CACHES, sides, strict=True))[:: 1 if turn % 2 else -1]:
                record = with_costs(load, side.offer(dataclasses.replace(load, seed=next(seeds))))
                found[cache] += [record] if turn else []
    return found


@contextmanager
def _workers(setup: Setup, broker: KafkaBroker, engine: str, *, has_cache: bool) -> Iterator[LoadBench]:
    model: Path | None = setup.model if engine == "MiniLM" else None
    name = f"{engine.lower()}-{'with' if has_cache else 'without'}"
    arguments = ("--device", "cpu") if engine == "MiniLM" else NULL_WORKER
    options = ("--cache-path", str(setup.logs / f"{name}.db")) if has_cache else ()
    spec = FleetSpec("null" if model is None else str(model), (*arguments, *options), members=1)
    with open_workers(broker, setup.logs, name, spec, model) as side:
        yield side
