"""Requests of which none is in the cache: what the look-up and the write cost beside a worker without a cache."""

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

import uvloop

from penstock.ops.bench.cache.cache_tables import CACHES, ENGINES
from penstock.ops.bench.cache.in_process import Pass, in_process_worker, open_cache, random_ids, request_values
from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.cpu.kafka_load import offer_load, worker
from penstock.ops.bench.cpu.load_spec import LoadResult
from penstock.ops.kafka import KafkaBroker

_IN_FLIGHT = {"MiniLM": 512, "null": 5000}
_NUM_REQUESTS = {"MiniLM": 2500, "null": 25_000}
_WARM_UP = {"MiniLM": 600, "null": 6000}
_NUM_IN_PROCESS = 16_384
_PER_RECORD = 64
_TURNS = ROUNDS + ROUNDS % 2  # even: each side goes first as often as the other

_Side = TypeVar("_Side")
_SWITCH_INTERVAL_S = 0.0001  # of the interpreter, as a worker sets it


def run_misses(setup: Setup) -> PartResult:
    """Part `misses`: MiniLM and the null engine through Kafka, and the null engine in process, each in turn."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    loads = {engine: _through_kafka(setup, engine) for engine in ENGINES}
    passes = uvloop.run(_in_process(setup))
    rows = [(f"{engine}, through Kafka", *_row(_figures(loads[engine]))) for engine in ENGINES]
    rows.append((f"null, in process, records of {_PER_RECORD}", *_row(_pass_figures(passes))))
    columns = ("engine", *[f"{unit} {cache}" for unit in ("answers/s", "processor µs") for cache in CACHES])
    comparisons = [
        Comparison(
            work=f"no hits, {engine}, through Kafka, with a cache",
            ours=f"{statistics.median(rates[CACHES[1]]):,.0f} answers/s",
            baseline=f"without {statistics.median(rates[CACHES[0]]):,.0f} answers/s",
            ratio=statistics.median(rates[CACHES[1]]) / statistics.median(rates[CACHES[0]]),
        )
        for engine in ENGINES
        for rates, _ in [_figures(loads[engine])]
    ]
    details: dict[str, Any] = {
        engine: {cache: [dataclasses.asdict(load) for load in found] for cache, found in by_cache.items()}
        for engine, by_cache in loads.items()
    }
    details["in process"] = {cache: [dataclasses.asdict(one) for one in found] for cache, found in passes.items()}
    return PartResult(comparisons, [Grid("no request in the cache", columns, rows)], details)


def _through_kafka(setup: Setup, engine: str) -> Mapping[str, Sequence[LoadResult]]:
    """Random ids, so that none is in the cache. Both workers stay up; the one that is not measured is idle."""
    model = str(setup.model) if engine == "MiniLM" else "null"
    found: dict[str, list[LoadResult]] = {cache: [] for cache in CACHES}
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        services = {}
        for number, cache in enumerate(CACHES):
            settings: dict[str, Any] = {"model": model, "served_name": f"m{number}"}
            if engine == "null":
                settings |= {"max_batch_tokens": 65_536, "max_batch_sequences": 1024, "lanes": 1}
            if cache == CACHES[1]:
                settings["cache_path"] = str(setup.logs / f"misses-{engine}.db")
            services[cache] = stack.enter_context(worker(setup, broker, settings))
        for turn in range(_TURNS):
            for number, cache in _in_turn(CACHES, turn):
                load = offer_load(
                    setup,
                    broker,
                    watch={"worker": services[cache].pid},
                    target="penstock",
                    model=f"m{number}",
                    payload="ids",
                    arrivals="closed",
                    num_requests=setup.count(_NUM_REQUESTS[engine]),
                    warm_up=setup.count(_WARM_UP[engine]),
                    in_flight=_IN_FLIGHT[engine],
                )
                found[cache].append(load)
    return found


async def _in_process(setup: Setup) -> Mapping[str, Sequence[Pass]]:
    found: dict[str, list[Pass]] = {cache: [] for cache in CACHES}
    async with AsyncExitStack() as stack:
        cache = await stack.enter_async_context(await open_cache(setup.logs / "misses.db"))
        stages = {
            CACHES[0]: await stack.enter_async_context(in_process_worker(None)),
            CACHES[1]: await stack.enter_async_context(in_process_worker(cache)),
        }
        for number in range(_TURNS + 1):  # the first warms up
            for _, (name, one) in _in_turn(list(stages.items()), number):
                ids = random_ids(setup.count(_NUM_IN_PROCESS), seed=number)
                measured = await one.run(request_values(ids, _PER_RECORD))
                await one.write()
                found[name] += [measured] if number else []
    return found


def _in_turn(sides: Sequence[_Side], turn: int) -> list[tuple[int, _Side]]:
    """Sides by number, in reverse in every second turn: a machine that warms up or slows down favours neither."""
    numbered = list(enumerate(sides))
    return numbered[::-1] if turn % 2 else numbered


def _figures(loads: Mapping[str, Sequence[LoadResult]]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    rates = {cache: [load.requests_per_s for load in found] for cache, found in loads.items()}
    return rates, {cache: [load.cpu_us("worker") for load in found] for cache, found in loads.items()}


def _pass_figures(passes: Mapping[str, Sequence[Pass]]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    rates = {cache: [one.per_s for one in found] for cache, found in passes.items()}
    return rates, {cache: [one.cpu_us for one in found] for cache, found in passes.items()}


def _row(figures: tuple[dict[str, list[float]], dict[str, list[float]]]) -> list[str]:
    return [f"{statistics.median(one[cache]):,.1f}" for one in figures for cache in CACHES]
