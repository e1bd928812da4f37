"""Ratios and rates from a run's raw figures. Pure: works on the result file alone."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FLOOR = "floor"
OURS = "ours"
FROM_HOST = "ours, from the host"
SDPA_SORTED = "transformers SDPA, sorted, batch 256"
COMPILED = "torch.compile, sorted, batch 256"
UNPADDED = "sentence-transformers, FlashAttention-2 without padding, sorted"

Point = Mapping[str, Any]  # has "ms": contestant -> milliseconds
Results = Mapping[str, Any]  # part -> its result


def geomean(values: Iterable[float]) -> float:
    """Geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def over_floor(points: Sequence[Point], contestant: str) -> list[float]:
    """Time over the floor's, of the points that have both."""
    pairs = [(point["ms"].get(contestant), point["ms"].get(FLOOR)) for point in points]
    return [time / floor for time, floor in pairs if time is not None and floor is not None]


def contestants(points: Sequence[Point]) -> list[str]:
    """All that appear, the floor last."""
    names = dict.fromkeys(name for point in points for name in point["ms"])
    return [name for name in names if name != FLOOR] + [FLOOR] * (FLOOR in names)


def mean_ms(points: Sequence[Point], contestant: str) -> float:
    """Mean over the points that have it; NaN of nothing."""
    values = [point["ms"][contestant] for point in points if contestant in point["ms"]]
    return statistics.fmean(values) if values else math.nan


def single_over_floor(points: Sequence[Point], contestant: str) -> float:
    """Mean time over the floor's mean time: what a stream of such requests would take, over what it must."""
    return mean_ms(points, contestant) / mean_ms(points, FLOOR)


def requests_per_s(workload: Mapping[str, Any]) -> dict[str, float]:
    """Of each contestant of a backlog."""
    return {name: workload["requests"] / seconds for name, seconds in workload["seconds"].items()}


def backlog_rates(results: Results) -> dict[str, dict[str, float]]:
    """Requests a second by backlog and contestant, torch.compile's from its own part."""
    rates = {work["name"]: requests_per_s(work) for work in results.get("backlog", {}).get("workloads", [])}
    for work in results.get("compile", {}).get("backlogs", []):
        if work["seconds"] is not None:
            rates.setdefault(work["name"], {})[COMPILED] = work["requests"] / work["seconds"]
    return rates


def deberta_speedups(part: Mapping[str, Any]) -> list[float]:
    """Times transformers, point by point, on the same clock: the inputs of both are on the device already."""
    both = [point["ms"] for point in part.get("points", []) if {OURS, "transformers"} <= point["ms"].keys()]
    return [milliseconds["transformers"] / milliseconds[OURS] for milliseconds in both]


def results_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Each part's result, of those that have one."""
    return {name: part["result"] for name, part in parts.items() if part["result"] is not None}
