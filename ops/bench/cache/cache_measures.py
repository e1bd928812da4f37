"""The figures of one kept run of the cache by name, from the raw values of its parts."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record

CACHES = ("without a cache", "with a cache")  # of a load without hits
ENGINES = ("MiniLM", "null")
PARTS = ("hits", "zipf", "misses")
WAYS = ("in process", "through Kafka")  # of a load of hits


def measures(record: Record) -> Measures:
    """Rates in answers a second, processor µs an answer, hit rates in points. What was not measured is absent."""
    found: dict[str, float] = {}
    parts = record["parts"]
    for way, by_size in parts.get("hits", {}).get("details", {}).items():
        for size, passes in by_size.items():
            found |= _hits(f"hits {way}, {kind(int(size))}", passes)
    for share, rates in parts.get("zipf", {}).get("details", {}).get("hit_rates", {}).items():
        found |= _zipf(f"Zipf(1.0), {float(share):.0%} of the bytes", rates)
    for engine, by_cache in parts.get("misses", {}).get("details", {}).items():
        found |= _misses(f"no hits, {engine}", by_cache)
    return found


def kind(size: int) -> str:
    """Name of records by their number of sequences."""
    return "single records" if size == 1 else f"records of {size}"


def _hits(name: str, passes: Sequence[Mapping[str, float]]) -> Measures:
    num_sequences = sum(one["num_sequences"] for one in passes)
    return {
        f"{name}, answers/s": statistics.median(one["num_sequences"] / one["wall_s"] for one in passes),
        f"{name}, processor µs": statistics.median(one["cpu_s"] / one["num_sequences"] * 1e6 for one in passes),
        f"{name}, share of hits": sum(one["num_cached"] for one in passes) / num_sequences,
    }


def _zipf(name: str, rates: Mapping[str, float]) -> Measures:
    return {
        f"{name}, hit rate": rates["ours"],
        f"{name}, hit rate of an ideal LRU": rates["ideal"],
        f"{name}, points below an ideal LRU": 100 * (rates["ideal"] - rates["ours"]),
    }


def _misses(name: str, by_cache: Mapping[str, Sequence[Mapping[str, Any]]]) -> Measures:
    found: dict[str, float] = {}
    for cache, loads in by_cache.items():
        found[f"{name}, {cache}, answers/s"] = statistics.median(_count(one) / one["wall_s"] for one in loads)
        found[f"{name}, {cache}, processor µs"] = statistics.median(_cpu_s(one) / _count(one) * 1e6 for one in loads)
    without, with_cache = (found[f"{name}, {cache}, answers/s"] for cache in CACHES)
    cpu_without, cpu_with_cache = (found[f"{name}, {cache}, processor µs"] for cache in CACHES)
    found[f"{name}, throughput lost"] = 1 - with_cache / without
    found[f"{name}, processor time added"] = cpu_with_cache / cpu_without - 1
    return found


def _count(load: Mapping[str, Any]) -> float:
    """Sequences of a pass in process, or answered requests of a load through Kafka."""
    if "num_sequences" in load:
        return float(load["num_sequences"])
    return float(load["num_requests"] - sum(load["failures"].values()))


def _cpu_s(load: Mapping[str, Any]) -> float:
    if "cpu_s" in load:
        return float(load["cpu_s"])
    return float(load["cpu_user_s"]["worker"] + load["cpu_system_s"]["worker"])
