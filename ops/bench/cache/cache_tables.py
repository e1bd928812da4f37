"""Figures and tables of the kept runs of the cache."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each
from penstock.ops.bench.load.load_bench import rate

CACHES = ("without a cache", "with a cache")  # of a load without hits
ENGINES = ("MiniLM", "null")
PARTS = ("hits", "misses")


def _worker_us(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Median processor µs a record of the worker."""
    return statistics.median(float(one["cpu_us"]["worker"]) for one in rounds)


SUITE = Suite(
    "cache",
    (
        At("hits.details.loads.*", "hits, *, answers/s", rate),
        At("hits.details.loads.*", "hits, *, processor µs a record", _worker_us),
        At("hits.details.share", "hits, share of all sequences"),
        At("misses.details.*.*", "no hits, *, *, answers/s", rate),
        At("misses.details.*.*", "no hits, *, *, processor µs", _worker_us),
        From(
            "no hits, *, throughput lost",
            [f"no hits, *, {cache}, answers/s" for cache in CACHES],
            lambda without, with_cache: 1 - with_cache / without,
        ),
        From(
            "no hits, *, processor time added",
            [f"no hits, *, {cache}, processor µs" for cache in CACHES],
            lambda without, with_cache: with_cache / without - 1,
        ),
    ),
)
_MISSES = [f"{unit} {cache}" for unit in ("answers/s", "processor µs") for cache in CACHES]
_CELLS = [f"{{no hits, *, {cache}, {unit}}}" for unit in ("answers/s", "processor µs") for cache in CACHES]
GRIDS = (
    Grid(
        ["one member, requests in the cache", "answers/s", "processor µs a record", "share of hits"],
        [["*", "{hits, *, answers/s}", "{hits, *, processor µs a record}", "{hits, share of all sequences}"]],
    ),
    Grid(["no request in the cache", *_MISSES], each(ENGINES, "*, through Kafka", *_CELLS)),
)
TABLES = {"cache": Table(SUITE, PARTS, GRIDS), "cache-targets": Table(SUITE, PARTS, [Targets("cache")])}
