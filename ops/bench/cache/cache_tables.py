"""Figures and tables of the kept runs of the cache."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, From, Suite
from penstock.ops.bench.common.tables import Grid, Table, Targets, each

CACHES = ("without a cache", "with a cache")  # of a load without hits
ENGINES = ("MiniLM", "null")
PARTS = ("hits", "zipf", "misses")
WAYS = ("in process", "through Kafka")  # of a load of hits

Passes = Sequence[Mapping[str, Any]]  # as `Pass`, or a `LoadResult`


def kind(size: int) -> str:
    """Name of records by their number of sequences."""
    return "single records" if size == 1 else f"records of {size}"


def _per_s(passes: Passes) -> float:
    return statistics.median(_count(one) / float(one["wall_s"]) for one in passes)


def _cpu_us(passes: Passes) -> float:
    return statistics.median(_cpu_s(one) / _count(one) * 1e6 for one in passes)


def _hit_share(passes: Passes) -> float:
    return float(sum(one["num_cached"] for one in passes) / sum(map(_count, passes)))


def _count(load: Mapping[str, Any]) -> float:
    """Sequences of a pass in process, or answered requests of a load through Kafka."""
    if "num_sequences" in load:
        return float(load["num_sequences"])
    return float(load["num_requests"] - sum(load["failures"].values()))


def _cpu_s(load: Mapping[str, Any]) -> float:
    if "cpu_s" in load:
        return float(load["cpu_s"])
    return float(load["cpu_user_s"]["worker"] + load["cpu_system_s"]["worker"])


_HITS = ("hits.details.*.*", (str, kind))
_ZIPF = ("zipf.details.hit_rates.*", ("{:.0%}".format,))
SUITE = Suite(
    "cache",
    (
        At(_HITS[0], "hits *, *, answers/s", _per_s, _HITS[1]),
        At(_HITS[0], "hits *, *, processor µs", _cpu_us, _HITS[1]),
        At(_HITS[0], "hits *, *, share of hits", _hit_share, _HITS[1]),
        At(f"{_ZIPF[0]}.ours", "Zipf(1.0), * of the bytes, hit rate", keys=_ZIPF[1], decimals=4),
        At(f"{_ZIPF[0]}.ideal", "Zipf(1.0), * of the bytes, hit rate of an ideal LRU", keys=_ZIPF[1], decimals=4),
        From(
            "Zipf(1.0), * of the bytes, points below an ideal LRU",
            ("Zipf(1.0), * of the bytes, hit rate of an ideal LRU", "Zipf(1.0), * of the bytes, hit rate"),
            lambda ideal, ours: 100 * (ideal - ours),
        ),
        At("misses.details.*.*", "no hits, *, *, answers/s", _per_s),
        At("misses.details.*.*", "no hits, *, *, processor µs", _cpu_us),
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
_COLUMNS = [f"{unit} {cache}" for unit in ("answers/s", "processor µs") for cache in CACHES]
_CELLS = [f"{{no hits, *, {cache}, {unit}}}" for unit in ("answers/s", "processor µs") for cache in CACHES]
GRIDS = (
    Grid(
        ["one member, every request in the cache", "answers/s", "processor µs", "hits"],
        [["*, *", "{hits *, *, answers/s}", "{hits *, *, processor µs}", "{hits *, *, share of hits}"]],
    ),
    Grid(
        ["Zipf(1.0) over 100,000 texts, hit rate", "penstock", "ideal LRU"],
        [
            [
                "a cache of * of their bytes",
                "{Zipf(1.0), * of the bytes, hit rate}",
                "{Zipf(1.0), * of the bytes, hit rate of an ideal LRU}",
            ]
        ],
    ),
    Grid(
        ["no request in the cache", *_COLUMNS],
        [
            *[row for engine in ENGINES for row in each([engine], "*, through Kafka", *_CELLS)],
            *each(["in process"], "null, *", *_CELLS),
        ],
    ),
)
TABLES = {"cache": Table(SUITE, PARTS, GRIDS), "cache-targets": Table(SUITE, PARTS, [Targets("cache")])}
