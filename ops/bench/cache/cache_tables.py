"""Tables of the kept runs of the cache, for NOTES.md."""

from collections.abc import Mapping, Sequence

from penstock.ops.bench.cache.cache_measures import CACHES, ENGINES, PARTS, WAYS, kind, measures
from penstock.ops.bench.common.kept_tables import of_each_machine, spreads, target_table
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread

_SIZES = (1, 64)
_SHARES = ("10%", "30%")
_IN_PROCESS = "in process"


def figures() -> str:
    """Table `cache`: what a hit costs, the hit rate beside an ideal LRU, and what a load without hits loses."""
    return of_each_machine("cache", PARTS, _figures)


def against_targets() -> str:
    """Table `cache-targets`."""
    return of_each_machine("cache", PARTS, lambda runs: target_table("cache", runs, measures))


def _figures(runs: Sequence[Run]) -> str:
    found = spreads(runs, measures)
    return "\n\n".join(filter(None, [_hits(found), _zipf(found), _misses(found)]))


def _hits(found: Mapping[str, Spread]) -> str:
    rows = []
    for way in WAYS:
        for size in _SIZES:
            name = f"hits {way}, {kind(size)}"
            if f"{name}, answers/s" in found:
                columns = ("answers/s", "processor µs", "share of hits")
                rows.append([f"{way}, {kind(size)}", *[str(found[f"{name}, {column}"]) for column in columns]])
    return table(["one member, every request in the cache", "answers/s", "processor µs", "hits"], rows) if rows else ""


def _zipf(found: Mapping[str, Spread]) -> str:
    rows = []
    for share in _SHARES:
        name = f"Zipf(1.0), {share} of the bytes"
        if f"{name}, hit rate" in found:
            rates = [found[f"{name}, hit rate"], found[f"{name}, hit rate of an ideal LRU"]]
            rows.append([f"a cache of {share} of their bytes", *[rate.shown(decimals=4) for rate in rates]])
    return table(["Zipf(1.0) over 100,000 texts, hit rate", "penstock", "ideal LRU"], rows) if rows else ""


def _misses(found: Mapping[str, Spread]) -> str:
    rows = []
    for engine in (*ENGINES, _IN_PROCESS):
        name = f"no hits, {engine}"
        if f"{name}, throughput lost" in found:
            units = [f"{cache}, {unit}" for unit in ("answers/s", "processor µs") for cache in CACHES]
            work = "null, in process" if engine == _IN_PROCESS else f"{engine}, through Kafka"
            rows.append([work, *[str(found[f"{name}, {unit}"]) for unit in units]])
    columns = [f"{unit} {cache}" for unit in ("answers/s", "processor µs") for cache in CACHES]
    return table(["no request in the cache", *columns], rows) if rows else ""
