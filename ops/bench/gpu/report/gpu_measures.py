"""The figures of one kept GPU run by name, from the raw values of its parts."""

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record
from penstock.ops.bench.gpu.report.arithmetic import (
    FLOOR,
    FROM_HOST,
    OURS,
    backlog_rates,
    contestants,
    deberta_speedups,
    geomean,
    mean_ms,
    over_floor,
    results_of,
    single_over_floor,
)


def measures(record: Record) -> Measures:
    """Rates in requests a second, times in ms or µs, ratios within the run. What was not measured is absent."""
    results = results_of(record["parts"])
    return dict(
        [
            *_grid(results.get("grid", {})),
            *_single(results.get("single", {})),
            *_backlogs(results),
            *_kernels(results.get("kernels", {})),
            *_deberta(results.get("deberta", {})),
            *_planner(results.get("memory", {})),
            *_families(results.get("families", {})),
        ]
    )


Found = Iterator[tuple[str, float]]


def _grid(part: Mapping[str, Any]) -> Found:
    for name in contestants(part.get("points", [])):
        yield f"grid, {name}, over the floor", geomean(over_floor(part["points"], name))


def _single(part: Mapping[str, Any]) -> Found:
    for workload in part.get("workloads", []):
        work = f"one request, {workload['low']}-{workload['high']} tokens"
        for name in contestants(workload["points"]):
            yield f"{work}, {name}, ms", mean_ms(workload["points"], name)
        for name in (OURS, FROM_HOST):
            yield f"{work}, {name}, over the floor", single_over_floor(workload["points"], name)


def _backlogs(results: Mapping[str, Any]) -> Found:
    for workload, rates in backlog_rates(results).items():
        for name, rate in rates.items():
            yield f"backlog, {workload}, {name}, req/s", rate
        if {OURS, FLOOR} <= rates.keys():
            yield f"backlog, {workload}, share of the floor", rates[OURS] / rates[FLOOR]


def _kernels(part: Mapping[str, Any]) -> Found:
    for row in part.get("rows", []):
        yield f"kernel, {row['kernel']}, {row['tokens']:,} tokens, share of the copy", row["share_of_copy"]
        yield f"kernel, {row['kernel']}, {row['tokens']:,} tokens, µs", row["us"]
        yield f"kernel, {row['kernel']}, {row['tokens']:,} tokens, torch, µs", row["torch_us"]
        yield f"kernel, {row['kernel']}, {row['tokens']:,} tokens, copy, µs", row["copy_us"]
    for row in part.get("attention", []):
        work = f"kernel, attention, {row['tokens']:,} tokens of {row['lengths']}"
        yield f"{work}, µs", row["us"]
        yield f"{work}, FlashAttention-2, µs", row["flash_us"]
        yield f"{work}, byte floor, µs", row["byte_floor_us"]
        yield f"{work}, time over FlashAttention-2", row["us"] / row["flash_us"]


def _deberta(part: Mapping[str, Any]) -> Found:
    if speedups := deberta_speedups(part):
        yield "DeBERTa-v3-base, times transformers, smallest", min(speedups)


def _planner(part: Mapping[str, Any]) -> Found:
    if part:
        yield "memory planner, one batch, p50, µs", part["planner"]["p50_us"]
        yield "memory planner, lower bound over bytes used", part["planner"]["min_lower_bound_over_used"]


def _families(part: Mapping[str, Any]) -> Found:
    cosines = [check["ours"]["cosine_min"] for row in part.get("rows", []) for check in row["checks"]]
    if cosines:
        yield "every family, smallest cosine to float32", min(cosines)
