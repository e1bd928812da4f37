"""The figures of one kept serving run by name, from the raw values of its parts. Pure: works on the file alone."""

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures

Record = Mapping[str, Any]
Found = Iterator[tuple[str, float]]

_DEFAULT, _TEI, _NONE = "penstock default", "TEI's rule", "packed, none"
_PADDED_DP, _PADDED_NAIVE, _PADDING_DP = "padded, DP, max 20", "padded, naive, max 20", "padding, DP, max 20"
_ALLOWED_MS = 2.0  # of what bulk may add to the p99 of online requests, or a tenth of it where that is more


def measures(record: Record) -> Measures:
    """Ratios within the run, errors as shares, times in the unit of the name. What was not measured is absent."""
    parts = record["parts"]
    return dict(
        [
            *(found for workload in parts.get("saturation", ()) for found in _gains(workload, _device(record))),
            *_goodput(parts.get("goodput")),
            *_bursts(parts.get("bursts")),
            *_classes(parts.get("classes")),
            *_costs(record),
            *_scheduler(parts.get("scheduler")),
            *_validation(parts.get("validation")),
        ]
    )


def _device(record: Record) -> str:
    return "GPU" if record["is_gpu"] else "CPU"


def _gains(workload: Record, device: str) -> Found:
    rates = {row["system"]: row["saturation_per_s"] for row in workload["rows"]}
    work = f"saturation, {workload['lengths']} tokens"
    yield f"{work}, {device}, default over one at a time", rates[_DEFAULT] / rates[_NONE]
    yield f"{work}, {device}, default over our runtime fed with padding, DP", rates[_DEFAULT] / rates[_PADDING_DP]
    yield f"{work}, {device}, default over transformers padded, DP", rates[_DEFAULT] / rates[_PADDED_DP]
    yield f"{work}, padded, DP over naive", rates[_PADDED_DP] / rates[_PADDED_NAIVE]
    curves = {row["system"]: row["curve"] for row in workload["rows"]}
    pairs = zip(curves[_PADDED_DP], curves[_PADDED_NAIVE], strict=True)
    yield f"{work}, padded, DP over naive, smallest of all rates, simulated", min(_times(a[1], b[1]) for a, b in pairs)


def _goodput(part: Record | None) -> Found:
    if part is None:
        return
    slo_s = sorted({row["slo_s"] for row in part["rows"]})[1]  # beside it are its half and its double
    at = {(row["system"], row["slo_s"], row["load"]): row for row in part["rows"]}
    loads = sorted({row["load"] for row in part["rows"]})
    work = f"goodput, {part['lengths']} tokens"
    yield f"{work}, 0.9 of saturation, share of the accepted in time", at[_DEFAULT, slo_s, 0.9]["in_time_of_accepted"]
    peak = max(at[_DEFAULT, slo_s, load]["goodput_per_s"] for load in loads)
    yield f"{work}, twice saturation, share of its peak", at[_DEFAULT, slo_s, 2.0]["goodput_per_s"] / peak
    ours = [row for row in part["rows"] if row["system"] == _DEFAULT]
    ratios = [_times(row["goodput_per_s"], at[_TEI, row["slo_s"], row["load"]]["goodput_per_s"]) for row in ours]
    yield f"{work}, times TEI's rule, smallest of all loads and objectives", min(ratios)


def _bursts(part: Record | None) -> Found:
    if part is None:
        return
    for load in sorted({row["load"] for row in part["rows"]}):
        pair = {row["system"]: row for row in part["rows"] if row["load"] == load}
        work = f"bursts, {part['lengths']} tokens, {load:g} of saturation"
        yield f"{work}, times TEI's rule", _times(pair[_DEFAULT]["goodput_per_s"], pair[_TEI]["goodput_per_s"])
        yield f"{work}, share of the accepted in time", pair[_DEFAULT]["in_time_of_accepted"]


def _classes(part: Record | None) -> Found:
    if part is None:
        return
    without, beside = (1e3 * _finite(row["latency_s"]["p99"]) for row in part["rows"])
    yield "online p99 beside bulk, more over what is allowed", (beside - without) / max(_ALLOWED_MS, 0.1 * without)


def _costs(record: Record) -> Found:
    for kind, engine in record["engines"].items():
        p95 = engine["run_errors"][1]
        if p95 is not None:  # a batch was run
            yield f"cost model, {kind}, {_device(record)}, p95 of the error", p95
        yield f"cost model, {kind}, calibration, s", engine["calibration_s"]


def _scheduler(part: Record | None) -> Found:
    if part is None:
        return
    yield "scheduler, 10,000 queued, one objective, µs a request", part["us"][_DEFAULT]
    yield "scheduler, 10,000 queued, three objectives, µs a request", part["us_three_slos"][_DEFAULT]
    yield "the DP of 1,000 queued, ms", max(part["dp_ms"].values())


def _validation(part: Record | None) -> Found:
    if part is None:
        return
    for key, what in (("answered_per_s", "throughput"), ("p99_s", "p99")):
        off = [abs(_finite(row["simulated"][key]) / _mean_of_real(row, key) - 1) for row in part["rows"]]
        yield f"simulator beside two real runs, {what}, largest error", max(off)


def _mean_of_real(row: Record, key: str) -> float:
    return statistics.fmean(_finite(row[run][key]) for run in ("real", "again") if run in row)


def _times(ours: float, theirs: float) -> float:
    """Ratio of two numbers; 1 where both are 0, infinity where only `theirs` is."""
    if theirs > 0:
        return ours / theirs
    return math.inf if ours > 0 else 1.0


def _finite(value: float | None) -> float:
    """JSON's null stands for infinite."""
    return math.inf if value is None else value
