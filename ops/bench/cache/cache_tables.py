"""Figures and tables of the kept runs of the cache."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

CACHES = ("without a cache", "with a cache")  # of a load without hits
ENGINES = ("MiniLM", "null")
PARTS = ("hits", "misses")
THROUGH_KAFKA = "through Kafka"  # a load of hits

Rounds = Sequence[Mapping[str, Any]]  # `Pass`es of hits, records of loads of misses


def kind(size: int) -> str:
    """Name of records by their number of sequences."""
    return "single records" if size == 1 else f"records of {size}"


def _hit_share(passes: Rounds) -> float:
    return float(sum(one["num_cached"] for one in passes) / sum(one["num_sequences"] for one in passes))


def _median(of: Callable[[Mapping[str, Any]], float]) -> Callable[[Rounds], float]:
    return lambda rounds: statistics.median(map(of, rounds))


_HITS, _KEYS = "hits.details.*.*", (str, kind)
SUITE = Suite(
    "cache",
    (
        At(_HITS, "hits *, *, answers/s", _median(lambda one: one["num_sequences"] / one["wall_s"]), _KEYS),
        At(_HITS, "hits *, *, processor µs", _median(lambda one: 1e6 * one["cpu_s"] / one["num_sequences"]), _KEYS),
        At(_HITS, "hits *, *, share of hits", _hit_share, _KEYS),
        At("misses.details.*.*", "no hits, *, *, answers/s", _median(lambda one: one["requests_per_s"])),
        At("misses.details.*.*", "no hits, *, *, processor µs", _median(lambda one: one["cpu_us"]["worker"])),
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
        ["one member, every request in the cache", "answers/s", "processor µs", "hits"],
        [["*, *", "{hits *, *, answers/s}", "{hits *, *, processor µs}", "{hits *, *, share of hits}"]],
    ),
    Grid(["no request in the cache", *_MISSES], each(ENGINES, "*, through Kafka", *_CELLS)),
)
TABLES = {"cache": Table(SUITE, PARTS, GRIDS), "cache-targets": Table(SUITE, PARTS, [Targets("cache")])}
