"""From a run's raw figures to what the issue asks for. Pure: works on the result file alone."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.claims import Criterion

FLOOR = "floor"
OURS = "ours"

Point = Mapping[str, Any]  # has "ms": contestant -> milliseconds
Parts = Mapping[str, Any]  # part -> its result


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


def share_in_scan(workload: Mapping[str, Any]) -> float | None:
    """Ours over the floor in requests a second, the fastest way of each in the scan; None where one is missing."""
    fastest = {name: min(seconds.values()) for name, seconds in workload["tried"].items() if seconds}
    return fastest[FLOOR] / fastest[OURS] if {OURS, FLOOR} <= fastest.keys() else None


def criteria(parts: Parts) -> list[tuple[str, Criterion]]:
    """What was asked for and what this run gives, in the order of the issue. What was not measured is left out."""
    found: list[tuple[str, Criterion]] = []
    if "grid" in parts:
        ratios = over_floor(parts["grid"]["points"], OURS)
        found.append(
            _at_most(f"ByteTransformer grid, {len(ratios)} points", "geomean / floor", geomean(ratios), 1.65, 1.4)
        )
    for workload in parts.get("single", {}).get("workloads", []):
        if workload["low"] == 2:
            ratio = single_over_floor(workload["points"], OURS)
            found.append(_at_most("one request, 2-100 tokens", "mean / floor", ratio, 1.6, 1.35))
    for workload in parts.get("backlog", {}).get("workloads", []):
        thresholds = {"2-100": (0.70, 0.80), "5-500": (0.64, 0.72)}.get(workload["name"])
        rates = requests_per_s(workload)
        if thresholds is not None and {OURS, FLOOR} <= rates.keys():
            share = rates[OURS] / rates[FLOOR]
            found.append(
                (f"backlog {workload['name']} tokens", Criterion("share of the floor's req/s", share, *thresholds))
            )
    found += _kernel_criteria(parts.get("kernels", {}))
    if speedups := deberta_speedups(parts.get("deberta", {})):
        smallest = Criterion("times transformers, smallest", min(speedups), 5.0, 8.0)
        found.append(("DeBERTa-v3-base", smallest))
    if "memory" in parts:
        planner = parts["memory"]["planner"]
        found.append(_at_most("planner, one batch", "µs, p50", planner["p50_us"], 100.0, 30.0))
        share = planner["min_lower_bound_over_used"]
        found.append(("planner, one batch", Criterion("lower bound / bytes used, smallest", share, 0.9, 0.9)))
    return found


def deberta_speedups(part: Mapping[str, Any]) -> list[float]:
    """Times transformers, point by point."""
    both = [point["ms"] for point in part.get("points", []) if {OURS, "transformers"} <= point["ms"].keys()]
    return [milliseconds["transformers"] / milliseconds[OURS] for milliseconds in both]


def _kernel_criteria(part: Mapping[str, Any]) -> list[tuple[str, Criterion]]:
    found = []
    for row in part.get("rows", []):
        if row["tokens"] >= 4096 and row["kernel"] != "bias + GELU":  # no figure was asked for that one
            name = f"{row['kernel']}, {row['tokens']:,} tokens"
            found.append((name, Criterion("share of the copy ceiling", row["share_of_copy"], 0.75, 0.90)))
    for row in part.get("attention", []):
        if (row["tokens"], row["lengths"]) == (16_384, "2-100"):
            ratio = row["us"] / row["flash_us"]
            work = "attention of short sequences (packed_attention), 16k tokens of 2-100"
            found.append(_at_most(work, "time / FA2 varlen", ratio, 0.5, 0.36))
    return found


def _at_most(work: str, what: str, value: float, must: float, aim: float) -> tuple[str, Criterion]:
    return work, Criterion(what, value, must, aim, higher_is_better=False)
