"""Requests that are all in the cache: answers a second, and processor time an answer, of one member."""

import asyncio
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import uvloop

from penstock.ops.bench.cache.cache_tables import WAYS, kind
from penstock.ops.bench.cache.in_process import (
    MODEL,
    REPLY_TOPIC,
    Ids,
    Pass,
    in_process_worker,
    open_cache,
    random_ids,
    request_values,
)
from penstock.ops.bench.cache.kafka_backlog import answered, write_backlog
from penstock.ops.bench.common.comparison import Comparison, Grid, PartResult
from penstock.ops.bench.common.setup import ROUNDS, Setup
from penstock.ops.bench.cpu.kafka_load import worker
from penstock.ops.kafka import KafkaBroker

SIZES = (1, 64)  # sequences in a record
_NUM_DISTINCT = 8192
_NUM_SEQUENCES = {1: 40_000, 64: 120 * 1024}
_SWITCH_INTERVAL_S = 0.0001  # of the interpreter, as a worker sets it


def run_hits(setup: Setup) -> PartResult:
    """Part `hits`: in process without a broker, then through a real one, single records and records of 64."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    path = setup.logs / "hits.db"
    distinct = random_ids(_NUM_DISTINCT, seed=1)
    found = {WAYS[0]: uvloop.run(_in_process(path, distinct, setup))}
    with KafkaBroker() as broker:
        passes = {
            size: [_through_kafka(setup, broker, path, distinct, size, number) for number in range(ROUNDS)]
            for size in SIZES
        }
    found[WAYS[1]] = passes
    rows = [
        (
            f"{way}, {kind(size)}",
            f"{_median(passes, 'per_s'):,.0f}",
            f"{_median(passes, 'cpu_us'):.1f}",
            f"{sum(one.num_cached for one in passes) / sum(one.num_sequences for one in passes):.2%}",
        )
        for way, by_size in found.items()
        for size, passes in by_size.items()
    ]
    grid = Grid("one member, all requests in the cache", ("path", "answers/s", "processor µs", "hits"), rows)
    comparisons = [
        Comparison(f"cache hits {way}, {kind(size)}", f"{_median(passes, 'per_s'):,.0f} answers/s", "", None)
        for way, by_size in found.items()
        for size, passes in by_size.items()
    ]
    details = {
        way: {str(size): [dataclasses.asdict(one) for one in passes] for size, passes in by_size.items()}
        for way, by_size in found.items()
    }
    return PartResult(comparisons, [grid], details)


async def _in_process(path: Path, distinct: Ids, setup: Setup) -> dict[int, list[Pass]]:
    """Fill the cache, then measure. Everything but the fetch from Kafka, the sending and the commits."""
    found: dict[int, list[Pass]] = {size: [] for size in SIZES}
    async with await open_cache(path) as cache, in_process_worker(cache) as stages:
        await stages.run(request_values(distinct, 64))
        await stages.write()
        values = {size: request_values(_repeated(distinct, setup, size), size) for size in SIZES}
        for _ in range(ROUNDS):
            for size in SIZES:
                found[size].append(await stages.run(values[size]))
    return found


def _through_kafka(setup: Setup, broker: KafkaBroker, path: Path, distinct: Ids, size: int, number: int) -> Pass:
    """A worker process with that cache answers a backlog."""
    topic, replies = f"hits.{size}.{number}", f"{REPLY_TOPIC}.{size}.{number}"
    values = request_values(_repeated(distinct, setup, size), size)
    asyncio.run(write_backlog(broker.bootstrap_servers, topic, replies, values))
    settings = {"model": MODEL, "topic": topic, "group_id": topic, "lanes": 1, "cache_path": str(path)}
    with worker(setup, broker, settings) as process:
        return asyncio.run(answered(broker.bootstrap_servers, replies, len(values), process.pid))


def _repeated(distinct: Ids, setup: Setup, size: int) -> Ids:
    count = -(-setup.count(_NUM_SEQUENCES[size]) // size) * size
    return np.resize(distinct, (count, distinct.shape[1]))


def _median(passes: Sequence[Pass], figure: str) -> float:
    return float(statistics.median(getattr(one, figure) for one in passes))
