"""The figures of the kept runs of generation, and their tables."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.measures import At, Measures, Record, Suite, results
from penstock.ops.bench.common.tables import Grid, Table, Targets

SEARCHES = {"greedy": "greedy", "beams_4": "4 beams"}
_WAYS = {
    "continuous": "ours, joining at every quantum",
    "static": "ours, joining at the start of a batch",
}


def ratios(record: Record) -> Measures:
    """The figures that are compared, as far as their parts have results."""
    found = {}
    for search in SEARCHES:
        parts = {name: results(record).get(f"{name}_{search}", {}) for name in ("continuous", "static", "transformers")}
        most = {
            name: max(one if isinstance(one, float) else one["requests_per_s"] for one in result.values())
            for name, result in parts.items()
            if result
        }
        for other in ("transformers", "static"):
            if {"continuous", other} <= most.keys():
                found[f"{search}: continuous over {other}"] = most["continuous"] / most[other]
        if (ways := results(record).get(f"arrivals_{search}", {})) and all(ways.values()):
            found[f"{search}: continuous over static at equal p99"] = _at_equal_p99(**ways)
        if steps := results(record).get(f"step_{search}", {}):
            found[f"{search}: step over its floor"] = min(float(one["ratio"]) for one in steps.values())
    return {name: round(ratio, 2) for name, ratio in found.items()}


def _at_equal_p99(continuous: Sequence[Mapping[str, Any]], static: Sequence[Mapping[str, Any]]) -> float:
    """The highest rate of late joins at which all requests ended, over static batching's rate at its p99.

    Between measured rates, p99 is interpolated. Where static batching is slower at every rate, its lowest rate counts,
    so the ratio is at least what is returned. Requests that were `left` are of older runs, which did not wait for them.
    """
    best = max((one for one in continuous if not one.get("left")), key=lambda one: float(one["rate"]))
    rates, p99s, most_ms = [one["rate"] for one in static], [one["p99_ms"] for one in static], best["p99_ms"]
    found = rates[0]
    for low, high, low_ms, high_ms in zip(rates, rates[1:], p99s, p99s[1:], strict=False):
        if low_ms <= most_ms:
            found = high if high_ms <= most_ms else low + (high - low) * (most_ms - low_ms) / (high_ms - low_ms)
    return float(best["rate"] / found)


GENERATION = Suite(
    "generation",
    [
        figure
        for search in SEARCHES
        for figure in (
            At(f"continuous_{search}.*.requests_per_s", f"{search}, continuous, *, req/s"),
            At(f"static_{search}.*.requests_per_s", f"{search}, static, *, req/s"),
            At(f"transformers_{search}.*", f"{search}, transformers, *, req/s"),
            At(f"step_{search}.*.device_us", f"{search}, step, *, µs"),
        )
    ]
    + [ratios],
)
_THROUGHPUT = Grid(
    ["", *SEARCHES.values()],
    [
        [shown, *(f"{{{search}, {figure}}}" for search in SEARCHES)]
        for shown, figure in (
            *((f"{shown}, quantum *, req/s", f"{way}, *, req/s") for way, shown in _WAYS.items()),
            ("transformers' generate, batches of *, req/s", "transformers, *, req/s"),
            ("one step of 512 sequences in quanta of *, µs", "step, *, µs"),
        )
    ],
)
_PARTS = [f"{part}_{search}" for search in SEARCHES for part in (*_WAYS, "transformers", "step", "arrivals")]
TABLES: Mapping[str, Callable[[], str]] = {
    "generation": Table(GENERATION, _PARTS, [_THROUGHPUT]),
    "generation-targets": Table(GENERATION, _PARTS, [Targets("generation")]),
}
